//! What a step computes.

use crate::errors::exception;
use crate::json;
use latent::{PlanView, PlannedOperation};
use pyo3::prelude::*;

/// An operation of a plan.
#[pyclass(frozen, get_all, module = "latent")]
pub(crate) struct Operation {
    /// Its word in the IR.
    op: &'static str,
    /// Its layer; None outside of layers.
    layer: Option<usize>,
    /// Between which barriers it runs, counted from 0.
    phase: usize,
    /// Its kernels.
    kernels: Vec<String>,
    /// Its weights: slot, and how they are stored.
    weights: Vec<(String, String)>,
}

#[pymethods]
impl Operation {
    fn __repr__(&self) -> String {
        let layer = self.layer.map_or_else(String::new, |layer| format!(", layer={layer}"));
        format!("Operation({:?}{layer}, phase={}, kernels={:?})", self.op, self.phase, self.kernels)
    }
}

/// The plan of a step. A notebook shows its drawing.
#[pyclass(frozen, module = "latent")]
pub(crate) struct Plan {
    view: PlanView,
}

impl Plan {
    pub(crate) fn new(view: PlanView) -> Plan {
        Plan { view }
    }
}

#[pymethods]
impl Plan {
    /// Its operations, in order.
    #[getter]
    fn operations(&self) -> Vec<Operation> {
        let operation = |PlannedOperation { op, layer, phase, kernels, weights, .. }| Operation {
            op,
            layer,
            phase,
            kernels,
            weights,
        };
        self.view.operations().into_iter().map(operation).collect()
    }

    /// Phases between barriers.
    #[getter]
    fn phases(&self) -> usize {
        self.view.phases()
    }

    /// Bytes of its activations.
    #[getter]
    fn arena_bytes(&self) -> usize {
        self.view.arena_bytes()
    }

    /// All of it, as `latent graph plan --json` prints it.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &self.view.to_json().map_err(|error| exception(py, &error))?)
    }

    /// The drawing as SVG.
    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        self.view.svg().map_err(|error| exception(py, &error))
    }

    /// The page of drawings, one file with everything in it.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        self.view.html().map_err(|error| exception(py, &error))
    }

    fn __len__(&self) -> usize {
        self.view.operations().len()
    }

    fn __str__(&self) -> String {
        self.view.text()
    }

    fn __repr__(&self) -> String {
        let text = self.view.text();
        format!("<Plan: {}, {} operations>", text.lines().next().unwrap_or_default(), self.__len__())
    }

    /// The drawing as an image, so that its styles are its own.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        // Inline SVG would apply its styles to the whole notebook page.
        let encoded = py.import("base64")?.call_method1("b64encode", (self.svg(py)?.as_bytes(),))?;
        let encoded: String = encoded.call_method1("decode", ("ascii",))?.extract()?;
        let about = self.view.text().lines().next().unwrap_or_default().replace('"', "&quot;");
        Ok(format!(
            "<div style=\"max-height: 40em; overflow: auto\"><img style=\"max-width: none\" alt=\"{about}\" src=\"data:image/svg+xml;base64,{encoded}\"></div>"
        ))
    }
}
