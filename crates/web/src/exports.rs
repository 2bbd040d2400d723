//! Functions exported to the page. Structured arguments and results are JSON. Errors reject the
//! promise.

#![expect(deprecated, reason = "wasm-bindgen marks `jspi` so as long as it is new")]

use crate::model::{AnswerOptions, Model, Page, words};
use js_sys::Function;
use latent_backend_wgpu::GpuBackend;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// What lives between calls: a page has one device and one model.
#[derive(Default)]
struct Loaded {
    backend: Option<GpuBackend>,
    model: Option<Model>,
}

thread_local! {
    static LOADED: Rc<RefCell<Loaded>> = Rc::default();
    /// Whether the present answer is to end.
    static STOPPED: Cell<bool> = const { Cell::new(false) };
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(text: &str);
}

/// Runs when the module is there: a panic ends the module, and only here can be said what it was.
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
    alone(|loaded| {
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

/// Loads a GGUF file in place of the present model. `progress` hears how many bytes of the weights, of how many, are on the device.
#[wasm_bindgen(jspi)]
pub fn load(name: String, bytes: Vec<u8>, context: u32, progress: Function) -> Result<String, JsError> {
    alone(|loaded| {
        // its memory first
        loaded.model = None;
        let backend = loaded.backend.as_ref().ok_or("no device is open")?;
        let mut heard =
            |done: u64, total: u64| call(&progress, &[done as f64, total as f64].map(JsValue::from));
        let model = Model::load(backend, &name, bytes, context as usize, &mut heard)?;
        let description = model.description().to_string();
        loaded.model = Some(model);
        Ok(description)
    })
}

/// Answers a conversation, a list of objects with `role` and `content`. `on_text` hears pieces of the answer, `on_prompt` tokens of the prompt that
/// are done, and of how many.
///
/// # Errors
/// A conversation that does not fit, options out of their range, a device that was lost.
#[wasm_bindgen(jspi)]
pub fn answer(
    messages: String,
    options: String,
    on_text: Function,
    on_prompt: Function,
) -> Result<String, JsError> {
    alone(|loaded| {
        let model = loaded.model.as_mut().ok_or("no model is loaded")?;
        let options: AnswerOptions = serde_json::from_str(&options)?;
        STOPPED.set(false);
        let mut page = Page {
            goes_on: &|| !STOPPED.get(),
            on_text: &|text| call(&on_text, &[text.into()]),
            on_prompt: &|done, total| call(&on_prompt, &[done, total].map(|n| JsValue::from(n as f64))),
        };
        Ok(model.answer(serde_json::from_str(&messages)?, &options, &mut page)?.to_string())
    })
}

/// Ends the present answer after its present token.
#[wasm_bindgen]
pub fn stop() {
    STOPPED.set(true);
}

/// Runs with what is loaded, unless another call that waits for the device has it.
fn alone(run: impl FnOnce(&mut Loaded) -> Result<String, Box<dyn Error>>) -> Result<String, JsError> {
    let loaded = LOADED.with(Rc::clone);
    let Ok(mut loaded) = loaded.try_borrow_mut() else {
        return Err(JsError::new("another call has not ended yet"));
    };
    run(&mut loaded).map_err(|error| JsError::new(&words(&*error)))
}

/// Calls a function of the page, whose own errors are its own affair.
fn call(function: &Function, arguments: &[JsValue]) {
    let list = arguments.iter().collect::<js_sys::Array>();
    drop(function.apply(&JsValue::NULL, &list));
}
