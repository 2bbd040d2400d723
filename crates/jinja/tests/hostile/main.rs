//! Templates that try to exhaust the stack, memory or time end with a text or one error, on a stack
//! of 2 MB.
#![allow(missing_docs, reason = "tests")]

mod amount;
mod depth;
mod source;

use latent_jinja::{ErrorKind, RenderRequest, RenderUsage, StringTrust, Template, TemplateLimits};
use serde_json::json;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of each thread. A rendering stays on one thread.
struct ThreadHeapCounter;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Records allocated or freed bytes. The thread-local counters of an ending thread are gone, so it
/// counts nothing.
fn note(bytes: isize) {
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is passed unchanged to the system's allocator; the counters do not affect it.
#[allow(unsafe_code, reason = "a global allocator")]
unsafe impl GlobalAlloc for ThreadHeapCounter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: ThreadHeapCounter = ThreadHeapCounter;

/// Maximum heap use of a template, with its source, tree, values and result.
const MEMORY: usize = 256 << 20;

struct HostileOutcome {
    result: Result<String, (ErrorKind, String)>,
    usage: RenderUsage,
    peak: usize,
    left: usize,
}

/// Renders on a thread with the default stack size and measures its memory.
fn outcome(source: &str, limits: TemplateLimits) -> HostileOutcome {
    let source = source.to_owned();
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        let before = LIVE.get();
        PEAK.set(before);
        let (result, usage) = render(&source, limits);
        let peak = (PEAK.get() - before) as usize;
        let kept = result.as_ref().map_or_else(|(_, m)| m.capacity(), String::capacity);
        let left = usize::try_from(LIVE.get() - before).unwrap_or(0).saturating_sub(kept);
        HostileOutcome { result, usage, peak, left }
    });
    thread.unwrap().join().expect("no panic")
}

fn render(source: &str, limits: TemplateLimits) -> (Result<String, (ErrorKind, String)>, RenderUsage) {
    let failed = |e: latent_jinja::Error| (e.kind(), e.to_string());
    let template = match Template::parse(source, &limits) {
        Ok(template) => template,
        Err(error) => return (Err(failed(error)), RenderUsage::default()),
    };
    let words = json!({"text": "some text of a user ".repeat(100), "list": [1, 2, 3], "word": "a"});
    let mut render = RenderRequest::new(&template, limits);
    for (name, value) in words.as_object().unwrap() {
        if let Err(error) = render.define(name, value, StringTrust::Content) {
            return (Err(failed(error)), RenderUsage::default());
        }
    }
    let (result, usage) = render.measured();
    (result.map(|rendered| rendered.text).map_err(failed), usage)
}

/// Asserts the bounds and returns the outcome for further checks.
fn bounded(source: &str) -> HostileOutcome {
    bounded_within(source, TemplateLimits::DEFAULT)
}

/// The default limits with a tenth of the fuel, for templates that use all of it.
/// `LATENT_TEST_EXHAUSTIVE` gives them the full amount.
fn little_fuel() -> TemplateLimits {
    let share = if std::env::var_os("LATENT_TEST_EXHAUSTIVE").is_some() { 1 } else { 10 };
    TemplateLimits { fuel: TemplateLimits::DEFAULT.fuel / share, ..TemplateLimits::DEFAULT }
}

fn bounded_within(source: &str, limits: TemplateLimits) -> HostileOutcome {
    let outcome = outcome(source, limits);
    let name: String = source.chars().take(90).collect();
    assert!(outcome.peak < MEMORY, "{name}: {} bytes", outcome.peak);
    assert!(outcome.left < 64 << 10, "{name}: {} bytes are left over", outcome.left);
    assert!(outcome.usage.fuel <= limits.fuel, "{name}");
    if let Ok(text) = &outcome.result {
        assert!(text.len() <= TemplateLimits::DEFAULT.output, "{name}");
    }
    outcome
}

fn refused(source: &str) {
    let outcome = bounded(source);
    let name: String = source.chars().take(90).collect();
    match outcome.result {
        Err((ErrorKind::Limit | ErrorKind::Value | ErrorKind::Unsupported, message)) => {
            assert!(message.len() < 3000, "{name}");
        }
        other => panic!("{name}: {:?}", other.map(|text| text.chars().take(100).collect::<String>())),
    }
}

#[test]
fn errors_are_one_line_and_name_the_line_of_the_template() {
    let outcome = bounded("a\nb\n{{ raise_exception('x\\n\\x1b[2Jy' ~ 'z' * 100000) }}");
    let Err((ErrorKind::Raised, message)) = outcome.result else { panic!("raised") };
    assert!(message.starts_with("x\\n\\u{1b}[2Jyzzz") && message.ends_with("… (line 3)"), "{message}");
    assert!(message.len() < 2200);
    let Err((kind, message)) = bounded("\n{% for %}").result else { panic!("refused") };
    assert_eq!((kind, message.as_str()), (ErrorKind::Syntax, "expected a name, found %} (line 2)"));
    let Err((kind, message)) = bounded("{{ messages[0].content }}").result else { panic!("refused") };
    assert_eq!((kind, message.as_str()), (ErrorKind::Undefined, "'messages' is undefined (line 1)"));
}
