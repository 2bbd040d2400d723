//! Files that `latent eval` reads: logits files, multiple choice, questions, and results for a
//! page.

use latent_evaluate::{ChoiceQuestion, Evaluation, LogitsReader, Question, report};
use std::io::Write;

/// Tokens of the vocabulary that logits files are opened for.
const VOCAB: usize = 7;

/// Reads a file of the kind that the first byte chooses.
///
/// # Panics
/// If a logits file has fewer positions than its chunks claim, a label is not the index of an
/// ending, or a name in a result becomes markup of the page.
pub fn evaluation(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    if kind % 4 == 3 {
        if let Ok(evaluation) = serde_json::from_slice::<Evaluation>(rest) {
            let page = report(&[evaluation]);
            assert!(!page.contains("<script") && page.ends_with("</html>\n"));
        }
        return;
    }
    let mut file = tempfile::NamedTempFile::new().unwrap_or_else(|error| panic!("{error}"));
    file.write_all(rest).and_then(|()| file.flush()).unwrap_or_else(|error| panic!("{error}"));
    match kind % 4 {
        0 => logits(file.path()),
        1 => {
            for choice in ChoiceQuestion::read(file.path(), None).unwrap_or_default() {
                assert!(choice.label < choice.endings.len() && choice.line > 0);
            }
        }
        _ => {
            for question in Question::read(file.path(), None).unwrap_or_default() {
                assert!(!question.prompt.is_empty() && !question.expected.is_empty());
            }
        }
    }
}

fn logits(path: &std::path::Path) {
    let Ok(mut reader) = LogitsReader::open(path, VOCAB) else { return };
    let chunks = reader.chunks();
    let positions = chunks.count() * chunks.scored().len();
    assert!(chunks.tokens().iter().all(|token| (*token as usize) < VOCAB));
    for position in 0..positions {
        match reader.read() {
            Ok(row) => assert_eq!(row.ln_p().count(), VOCAB),
            // `open` has checked the size of the file, so only NaN scales may fail.
            Err(error) => assert!(error.to_string().contains("NaN"), "position {position}: {error}"),
        }
    }
    assert!(reader.read().is_err(), "more positions than the header says");
}
