//! Patterns of tensor names: `{…}` matches a number and `*` matches anything.

/// Whether a name fits a pattern.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    match pattern.as_bytes().first() {
        None => name.is_empty(),
        // Backtracking is acceptable: patterns come from circuits, and have one `*` at most.
        Some(b'*') => (0..=name.len()).any(|i| name.is_char_boundary(i) && fits(&pattern[1..], &name[i..])),
        Some(b'{') => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            let end = pattern.find('}').map_or(pattern.len(), |end| end + 1);
            digits > 0 && fits(&pattern[end..], &name[digits..])
        }
        Some(_) => {
            let first = pattern.chars().next().unwrap_or_default();
            name.strip_prefix(first).is_some_and(|rest| fits(&pattern[first.len_utf8()..], rest))
        }
    }
}

/// Translates `name` from `pattern` to `other`, two patterns that differ only in words around
/// `{layer}`.
pub(super) fn renamed(pattern: &str, other: &str, name: &str) -> Option<String> {
    let layer = match pattern.split_once("{layer}") {
        Some((before, behind)) => name.strip_prefix(before)?.strip_suffix(behind)?,
        None => "",
    };
    let number = layer.bytes().all(|byte| byte.is_ascii_digit());
    (number && fits(pattern, name)).then(|| other.replace("{layer}", layer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_names() {
        assert!(fits("blk.{layer}.*.input_scale", "blk.12.ffn_up.input_scale"));
        assert!(fits("vision_tower.*", "vision_tower.blocks.0.norm.weight"));
        assert!(!fits("blk.{layer}.*.input_scale", "blk.x.ffn_up.input_scale"));
        assert!(!fits("rope_freqs.weight", "rope_freqs.weights"));
        assert!(!fits("rope_freqs.weight", "rope_freqs"));
    }

    #[test]
    fn a_tensor_keeps_its_layer_under_the_other_name() {
        let (gguf, hf) = ("blk.{layer}.indexer.proj.weight", "layers.{layer}.weights_proj.weight");
        assert_eq!(renamed(hf, gguf, "layers.12.weights_proj.weight").unwrap(), "blk.12.indexer.proj.weight");
        assert_eq!(renamed(gguf, hf, "blk.x.indexer.proj.weight"), None);
        assert_eq!(renamed("a.weight", "b.weight", "a.weight").unwrap(), "b.weight");
        assert_eq!(renamed("a.weight", "b.weight", "b.weight"), None);
    }
}
