//! Byte-pair encoding against its definition, on random vocabularies.

use super::*;

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A vocabulary of a few letters, and merges of whatever came before.
fn vocabulary(numbers: &mut Numbers) -> (VocabularyMap, Vec<(String, String)>) {
    let mut texts: Vec<String> = ["a", "b", "é", "▁", "c"].map(str::to_owned).to_vec();
    let mut merges = Vec::new();
    for _ in 0..numbers.below(60) {
        let part = |numbers: &mut Numbers| texts[numbers.below(texts.len())].clone();
        let (left, right) = (part(numbers), part(numbers));
        let whole = format!("{left}{right}");
        if whole.chars().count() > 12 {
            continue;
        }
        if !texts.contains(&whole) {
            texts.push(whole);
        }
        merges.push((left, right));
    }
    let ids = texts.into_iter().enumerate().map(|(id, text)| (text.into_boxed_str(), id as u32)).collect();
    (ids, merges)
}

fn piece(numbers: &mut Numbers, letters: usize) -> String {
    let length = numbers.below(300) + 1;
    let mut text = String::new();
    while text.len() < length {
        let letter = ["a", "b", "é", "▁", "c", "x"][numbers.below(letters)];
        let times = if numbers.below(6) == 0 { numbers.below(40) } else { 1 };
        text.push_str(&letter.repeat(times));
    }
    text
}

/// The ids of a piece by the definition: as long as any pair merges, the leftmost one of the lowest
/// rank does.
fn by_definition(model: &Bpe, piece: &str) -> Vec<u32> {
    let mut ids: Vec<u32> = piece.chars().filter_map(|c| model.character(c)).collect();
    loop {
        let pairs = ids.windows(2).enumerate();
        let best = pairs
            .filter_map(|(at, pair)| Some((*model.merges.get(&(pair[0], pair[1]))?, at)))
            .min_by_key(|((rank, _), at)| (*rank, *at));
        let Some(((_, id), at)) = best else { return ids };
        ids.splice(at..at + 2, [id]);
    }
}

fn encoded(model: &Bpe, piece: &str, workspace: &mut Workspace) -> Vec<u32> {
    let mut ids = Vec::new();
    let push = &mut |id| {
        ids.push(id);
        Ok(())
    };
    model.encode(piece, workspace, push).unwrap();
    ids
}

/// Pieces long enough to be cut, cut and not cut, with merges and with ranks.
#[test]
fn ids_are_those_of_the_definition_wherever_a_piece_is_cut() {
    let mut numbers = Numbers(7);
    let mut workspace = Workspace::default();
    let mut cut = 0;
    for round in 0..300 {
        let (ids, merges) = vocabulary(&mut numbers);
        let mut model = if round % 3 == 0 {
            let mut model = Bpe::ranked(ids);
            // whole pieces have no definition to be compared with
            model.words = None;
            model
        } else {
            Bpe::new(ids, merges, &HashSet::new(), &BpeOptions::default()).unwrap()
        };
        for _ in 0..10 {
            let letters = 2 + numbers.below(5);
            let piece = piece(&mut numbers, letters);
            let expected = by_definition(&model, &piece);
            assert_eq!(encoded(&model, &piece, &mut workspace), expected, "{piece}");
            let joins = model.joins.take();
            assert!(joins.is_some());
            assert_eq!(encoded(&model, &piece, &mut workspace), expected, "{piece}");
            let symbols: Vec<u32> = piece.chars().filter_map(|c| model.character(c)).collect();
            let reach = |set: &HashSet<(u32, u32), RandomState>| {
                symbols.windows(2).all(|pair| set.contains(&(pair[0], pair[1])))
            };
            cut += usize::from(piece.len() >= SHORT && !joins.as_ref().is_some_and(reach));
            model.joins = joins;
        }
    }
    assert!(cut > 500, "{cut} pieces were cut");
}

#[test]
fn unknown_characters_fall_back_on_bytes_or_become_one_token() {
    let ids = |tokens: &[&str]| -> VocabularyMap {
        tokens.iter().enumerate().map(|(id, text)| ((*text).into(), id as u32)).collect()
    };
    let encode = |tokens: &[&str], options: &BpeOptions, text: &str| {
        let model = Bpe::new(ids(tokens), [], &HashSet::new(), options).unwrap();
        encoded(&model, text, &mut Workspace::default())
    };
    let tokens = ["<unk>", "a", "<0xC3>", "<0xA9>"];
    let unknown = BpeOptions { unknown: Some("<unk>".into()), ..BpeOptions::default() };
    assert_eq!(encode(&tokens, &unknown, "axya"), [1, 0, 0, 1]);
    assert_eq!(encode(&tokens, &BpeOptions { fuse_unknown: true, ..unknown.clone() }, "axya"), [1, 0, 1]);
    let bytes = BpeOptions { byte_fallback: true, ..unknown };
    assert_eq!(encode(&tokens, &bytes, "aé"), [1, 2, 3]);
    // only some of the bytes of ü are there
    assert_eq!(encode(&tokens, &bytes, "aüa"), [1, 0, 1]);
    // without a token for them they are left out
    assert_eq!(encode(&tokens, &BpeOptions::default(), "axéa"), [1, 1]);
}

#[test]
fn a_model_whose_merges_reach_nothing_is_refused() {
    let ids: VocabularyMap = [("a", 0), ("b", 1)].into_iter().map(|(text, id)| (text.into(), id)).collect();
    let pair = [("a".to_owned(), "b".to_owned())];
    let error = Bpe::new(ids, pair, &HashSet::new(), &BpeOptions::default()).err().unwrap();
    assert!(error.contains("merge 0") && error.contains("\"ab\""), "{error}");
}
