//! The classes `Plan` and `Operation`.

use crate::errors::exception;
use crate::json;
use latent::{PlanView, PlannedOperation};
use pyo3::prelude::*;

/// An operation of a plan.
#[pyclass(frozen, get_all, module = "latent")]
pub(crate) struct Operation {
    /// Name of the operation in the IR.
    op: &'static str,
    /// Index of the layer, or None outside of layers.
    layer: Option<usize>,
    /// Index of the phase in which it runs. Phases are separated by barriers.
    phase: usize,
    /// Names of its kernels.
    kernels: Vec<String>,
    /// Its weights: (slot, storage format) tuples.
    weights: Vec<(String, String)>,
}

#[pymethods]
impl Operation {
    fn __repr__(&self) -> String {
        let layer = self.layer.map_or_else(String::new, |layer| format!(", layer={layer}"));
        format!("Operation({:?}{layer}, phase={}, kernels={:?})", self.op, self.phase, self.kernels)
    }
}

/// Execution plan of a step. `str(plan)` has one line per operation, and a notebook shows a
/// drawing.
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
    /// Operations, in the order of execution.
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

    /// Number of phases, which are separated by barriers.
    #[getter]
    fn phases(&self) -> usize {
        self.view.phases()
    }

    /// Size of the memory for activations, in bytes.
    #[getter]
    fn arena_bytes(&self) -> usize {
        self.view.arena_bytes()
    }

    /// Return the plan as a dict: the data of `latent graph plan --json`.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &self.view.to_json().map_err(|error| exception(py, &error))?)
    }

    /// Return the drawing as an SVG document.
    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        self.view.svg().map_err(|error| exception(py, &error))
    }

    /// Return the page of `latent graph --html`, a self-contained HTML document.
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

    /// Return the drawing as an HTML image, for notebooks.
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
