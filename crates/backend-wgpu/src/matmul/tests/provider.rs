//! The device as a backend of the table of cases.

use super::{bytes, numbers, w4};
use crate::buffers::Buffer;
use crate::commands::Commands;
use crate::device::Device;
use crate::matmul::product::{Matrix, matmul};
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
                let form = (case.layout, case.activation, case.across);
                kernel.id == 0 && form == (WeightLayout::Rows, ActivationType::F32, false)
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
            (Case::Product(case), Operands::Product(operands)) => {
                Ok(Box::new(ProductJob::new(&self.device, case, operands)?))
            }
            (Case::W4(case), Operands::W4(operands)) => {
                Ok(Box::new(w4::W4Job::new(&self.device, case, operands).map_err(|error| error.to_string())?))
            }
            _ => Err(format!("no shader computes {}", case.name())),
        }
    }
}

struct ProductJob {
    device: Arc<Device>,
    rows: usize,
    weight: Weight,
    x: Buffer,
    y: Buffer,
}

impl ProductJob {
    fn new(
        device: &Arc<Device>,
        case: &ProductCase,
        operands: &ProductOperands,
    ) -> Result<ProductJob, String> {
        let matrix = operands.weight(case, 0);
        let QuantizedInput::F32(input) = operands.acts(case) else { return Err("f32 rows".into()) };
        let x: Vec<f32> = (0..case.rows).flat_map(|row| input.row(row).to_vec()).collect();
        let shape = WeightShape { inputs: case.inputs, outputs: case.outputs, experts: 1 };
        let scales = matrix.scales();
        let scales = scales.map(|s| BlockScales { numbers: s.numbers, rows: s.rows, inputs: s.cols });
        let make = || {
            let weight = Weight::upload(device, "weight", (case.weight, shape), matrix.bytes(), scales)?;
            let x = Buffer::with(device, "x", &bytes(&x))?;
            let y = Buffer::new(device, "y", 4 * (case.rows * case.outputs) as u64)?;
            Ok((weight, x, y))
        };
        let (weight, x, y) = make().map_err(|error: crate::GpuError| error.to_string())?;
        Ok(ProductJob { device: Arc::clone(device), rows: case.rows, weight, x, y })
    }
}

impl Job for ProductJob {
    fn run(&mut self, _: usize) {
        let WeightShape { inputs, outputs, .. } = self.weight.shape();
        let mut commands = Commands::new(&self.device);
        let (x, y) = (Matrix::new(&self.x, inputs), Matrix::new(&self.y, outputs));
        matmul(&mut commands, &self.weight, &x, &y, self.rows).unwrap();
        commands.submit(&[]).unwrap();
    }

    fn results(&self) -> Vec<f32> {
        let count = self.rows * self.weight.shape().outputs;
        numbers(&self.y.read("y", 0..4 * count as u64).unwrap())
    }

    /// A second run gives the same bits.
    fn promises(&mut self) -> Result<(), String> {
        let first = self.results();
        self.run(0);
        let same = first.iter().zip(self.results()).all(|(a, b)| a.to_bits() == b.to_bits());
        if same { Ok(()) } else { Err("two runs differ".into()) }
    }
}
