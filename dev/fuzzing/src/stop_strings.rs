//! Compares the streaming search for stop strings with a search of the whole text.

use crate::source::FuzzSource;
use latent_engine::sampling::StopStrings;

/// Searches a text in pieces for stop strings over a few letters, so that they overlap. The result
/// must equal that of a search of the whole text, and no text may be returned that could still
/// become part of a stop string.
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

/// The start of the stop string that ends first. If several end at the same place, the longest one
/// counts.
fn first(text: &str, stops: &[String]) -> Option<usize> {
    (0..=text.len()).filter(|end| text.is_char_boundary(*end)).find_map(|end| {
        let here = stops.iter().filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str()));
        here.map(|stop| end - stop.len()).min()
    })
}
