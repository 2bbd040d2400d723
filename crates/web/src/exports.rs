//! Functions exported to the page. Structured arguments and results are JSON. An error rejects the
//! promise.

#![expect(deprecated, reason = "wasm-bindgen marks `jspi` so as long as it is new")]

use crate::model::{AnswerOptions, Model, PageListener, error_text};
use js_sys::Function;
use latent_backend_wgpu::GpuBackend;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// State that persists between calls: a page has one device and one model.
#[derive(Default)]
struct Loaded {
    backend: Option<GpuBackend>,
    model: Option<Model>,
}

thread_local! {
    static LOADED: Rc<RefCell<Loaded>> = Rc::default();
    /// Whether the page has stopped the current answer.
    static STOPPED: Cell<bool> = const { Cell::new(false) };
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(text: &str);
}

/// Runs when the module has loaded. A panic aborts the module with an unspecific trap, so its
/// message must be printed before.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| console_error(&panic.to_string())));
}

/// Opens the browser's WebGPU adapter.
///
/// # Errors
/// If the browser has no adapter, or the adapter lacks a feature that shaders need.
#[wasm_bindgen(jspi)]
pub fn open() -> Result<String, JsError> {
    with_loaded(|loaded| {
        let backend = GpuBackend::open(0)?;
        let adapter = backend.adapter().clone();
        loaded.backend = Some(backend);
        Ok(json!({
            "name": adapter.name,
            "kind": adapter.kind.to_string(),
            "driver": adapter.driver,
            "largest_buffer": adapter.max_binding.min(adapter.max_buffer),
        })
        .to_string())
    })
}

/// Loads a GGUF file and replaces the current model. `progress` receives the number of weight bytes
/// on the device and their total.
#[wasm_bindgen(jspi)]
pub fn load(name: String, bytes: Vec<u8>, context: u32, progress: Function) -> Result<String, JsError> {
    with_loaded(|loaded| {
        // Free the old model's memory before the new one is allocated.
        loaded.model = None;
        let backend = loaded.backend.as_ref().ok_or("no device is open")?;
        let mut report =
            |done: u64, total: u64| call(&progress, &[done as f64, total as f64].map(JsValue::from));
        let model = Model::load(backend, &name, bytes, context as usize, &mut report)?;
        let description = model.description().to_string();
        loaded.model = Some(model);
        Ok(description)
    })
}

/// Answers a conversation, a list of objects with `role` and `content`. `on_text` receives pieces
/// of the answer, `on_prompt` the number of processed tokens of the prompt and their total.
///
/// # Errors
/// If the conversation does not fit, an option is out of range, or the device is lost.
#[wasm_bindgen(jspi)]
pub fn answer(
    messages: String,
    options: String,
    on_text: Function,
    on_prompt: Function,
) -> Result<String, JsError> {
    with_loaded(|loaded| {
        let model = loaded.model.as_mut().ok_or("no model is loaded")?;
        let options: AnswerOptions = serde_json::from_str(&options)?;
        // A stop of an earlier answer must not end this one.
        STOPPED.set(false);
        let mut listener = PageListener {
            may_continue: &|| !STOPPED.get(),
            on_text: &|text| call(&on_text, &[text.into()]),
            on_prompt: &|done, total| call(&on_prompt, &[done, total].map(|n| JsValue::from(n as f64))),
        };
        Ok(model.answer(serde_json::from_str(&messages)?, &options, &mut listener)?.to_string())
    })
}

/// Ends the current answer after its current token.
#[wasm_bindgen]
pub fn stop() {
    STOPPED.set(true);
}

/// Runs with exclusive access to the loaded device and model.
fn with_loaded(run: impl FnOnce(&mut Loaded) -> Result<String, Box<dyn Error>>) -> Result<String, JsError> {
    let loaded = LOADED.with(Rc::clone);
    // While a call waits for the device, the browser suspends it with its borrow held, and the page
    // may make another call. Borrowing again would panic.
    let Ok(mut loaded) = loaded.try_borrow_mut() else {
        return Err(JsError::new("another call has not ended yet"));
    };
    run(&mut loaded).map_err(|error| JsError::new(&error_text(&*error)))
}

/// Calls a function of the page. Exceptions of that function are ignored.
fn call(function: &Function, arguments: &[JsValue]) {
    let list = arguments.iter().collect::<js_sys::Array>();
    drop(function.apply(&JsValue::NULL, &list));
}
