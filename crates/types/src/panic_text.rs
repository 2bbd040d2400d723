use std::any::Any;

/// The message of a panic from `catch_unwind` or `JoinHandle::join`.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    // `panic!` with a literal has a `&str`, with arguments a `String`. `panic_any` can have any
    // type.
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::panic_text;
    use std::panic::{catch_unwind, panic_any};

    #[test]
    fn panics_with_any_payload_have_a_text() {
        let text = |panic: fn()| panic_text(&*catch_unwind(panic).unwrap_err()).to_owned();
        assert_eq!(text(|| panic!("plain")), "plain");
        assert_eq!(text(|| panic!("out of {}", "range")), "out of range");
        assert_eq!(text(|| panic_any(7)), "no message");
    }
}
