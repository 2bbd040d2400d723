//! Stop strings against a search of the whole text.

use crate::source::FuzzSource;
use latent_engine::sampling::StopStrings;

/// Stop strings over few letters, so that they overlap, and a text in pieces: the result must equal a search of the whole text, and
/// nothing is shown that is not certain.
pub fn stop_strings(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let stops: Vec<String> = (0..source.below(5)).map(|_| word(&mut source, 6)).collect();
    let pieces: Vec<String> = (0..source.below(64)).map(|_| word(&mut source, 8)).collect();
    let whole = pieces.concat();
    let expected = first(&whole, &stops);
    let shown = &whole[..expected.unwrap_or(whole.len())];

    let mut watcher = StopStrings::new(&stops);
    let mut text = String::new();
    for piece in &pieces {
        text.push_str(&watcher.push(piece));
        assert!(shown.starts_with(&text), "{text:?} of {shown:?}, stops {stops:?}");
    }
    assert_eq!(watcher.found(), expected.is_some(), "{pieces:?}, stops {stops:?}");
    text.push_str(&watcher.finish());
    assert_eq!(text, shown, "{pieces:?}, stops {stops:?}");
    assert_eq!(watcher.finish(), "");
}

fn word(source: &mut FuzzSource<'_>, longest: usize) -> String {
    (0..source.below(longest)).map(|_| *source.pick(&['a', 'b', 'é', '\n', '🙂'])).collect()
}

/// Where the stop string begins whose end comes first; of those with one end, the longest.
fn first(text: &str, stops: &[String]) -> Option<usize> {
    (0..=text.len()).filter(|end| text.is_char_boundary(*end)).find_map(|end| {
        let here = stops.iter().filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str()));
        here.map(|stop| end - stop.len()).min()
    })
}
