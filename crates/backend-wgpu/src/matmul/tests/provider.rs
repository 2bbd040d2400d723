//! The device as a backend of the table of cases.

use super::{bytes, numbers, w4};
use crate::GpuError;
use crate::buffers::Buffer;
use crate::commands::Commands;
use crate::device::Device;
use crate::matmul::product::{Items, Matrices, Part, Place, multiply};
use crate::matmul::weight::{BlockScales, Weight, WeightShape};
use latent_conformance::{Backend, Case, Job, Kernel, Level, Operands, ProductCase, ProductOperands};
use latent_kernels::QuantizedInput;
use latent_types::{ActivationType, WeightLayout};
use std::sync::Arc;

/// A device.
pub(super) struct Gpu {
    pub(super) device: Arc<Device>,
}

impl Backend for Gpu {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn levels(&self) -> Vec<Level> {
        vec![Level { name: "wgsl", available: true }]
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }

    fn flushes(&self) -> bool {
        true
    }

    fn kernels(&self) -> Vec<Kernel> {
        let kernel = |id, name: &str| Kernel { name: name.into(), level: "wgsl", missing: None, id };
        vec![kernel(0, "matmul"), kernel(1, "w4")]
    }

    fn serves(&self, kernel: &Kernel, case: &Case) -> bool {
        match case {
            Case::Product(case) => {
                kernel.id == 0 && (case.layout, case.activation) == (WeightLayout::Rows, ActivationType::F32)
            }
            Case::W4(case) => kernel.id == 1 && w4::serves(case.op),
            _ => false,
        }
    }

    fn prepare<'o>(
        &self,
        _: &Kernel,
        case: &'o Case,
        operands: &'o Operands,
    ) -> Result<Box<dyn Job + Send + 'o>, String> {
        match (case, operands) {
            (Case::Product(case), Operands::Product(operands)) => Ok(Box::new(
                ProductJob::new(&self.device, case, operands).map_err(|error| error.to_string())?,
            )),
            (Case::W4(case), Operands::W4(operands)) => {
                Ok(Box::new(w4::W4Job::new(&self.device, case, operands).map_err(|error| error.to_string())?))
            }
            _ => Err(format!("no shader computes {}", case.name())),
        }
    }
}

struct ProductJob {
    device: Arc<Device>,
    weight: Weight,
    part: Part,
    items: Items,
    y: Buffer,
    /// Results.
    count: usize,
}

impl ProductJob {
    fn new(
        device: &Arc<Device>,
        case: &ProductCase,
        operands: &ProductOperands,
    ) -> Result<ProductJob, GpuError> {
        let matrix = operands.weight(case, 0);
        // transposed, some rows of the weight are the inputs
        let (rows, inputs) =
            if case.across { (case.inputs, case.outputs) } else { (case.outputs, case.inputs) };
        let shape = WeightShape { inputs, outputs: rows + case.skipped, matrices: 1 };
        let scales = matrix.scales().map(|s| BlockScales {
            numbers: s.numbers,
            rows: s.rows,
            inputs: s.cols,
            per_matrix: false,
        });
        let weight = Weight::upload(device, "weight", (case.weight, shape), matrix.bytes(), scales)?;
        let x: Vec<f32> = match operands.acts(case) {
            QuantizedInput::F32(input) => (0..case.rows).flat_map(|row| input.row(row).to_vec()).collect(),
            _ => Vec::new(),
        };
        let x = Buffer::with(device, "x", &bytes(&x))?;
        let count = case.rows * case.outputs;
        let y = Buffer::new(device, "y", 4 * count as u64)?;
        let (from, to) = (Place::rows(&x, 1, case.inputs), Place::rows(&y, 1, case.outputs));
        Ok(ProductJob {
            device: Arc::clone(device),
            weight,
            part: Part { rows: case.skipped..rows + case.skipped, transposed: case.across },
            items: Items { rows: 0..case.rows, slots: 1, x: from, y: to },
            y,
            count,
        })
    }
}

impl Job for ProductJob {
    fn run(&mut self, _: usize) {
        let mut commands = Commands::new(&self.device);
        multiply(&mut commands, (&self.weight, &self.part), &self.items, &Matrices::One).unwrap();
        commands.submit(&[]).unwrap();
    }

    fn results(&self) -> Vec<f32> {
        numbers(&self.y.read("y", 0..4 * self.count as u64).unwrap())
    }

    /// A second run gives the same bits.
    fn promises(&mut self) -> Result<(), String> {
        let first = self.results();
        self.run(0);
        let same = first.iter().zip(self.results()).all(|(a, b)| a.to_bits() == b.to_bits());
        if same { Ok(()) } else { Err("two runs differ".into()) }
    }
}
