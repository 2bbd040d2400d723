//! Speedup of products of packed weights over products of the same weights unpacked to floats.

use crate::perf::Measurement;
use crate::product::ProductCase;
use latent_types::{TensorType, WeightLayout};
use serde::Serialize;

/// Times of a product of one format and size, fused and unpacked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FusedSpeedup {
    /// The format of the weight.
    pub format: String,
    /// Input rows.
    pub rows: usize,
    /// Elements per input row.
    pub inputs: usize,
    /// Elements per output row.
    pub outputs: usize,
    /// Microseconds of the fused product. Weights are dequantized in registers or multiplied as
    /// integers.
    pub fused_micros: f64,
    /// The float type with the fastest product of this size.
    pub unpacked: String,
    /// Microseconds of that product, without the time for unpacking.
    pub unpacked_micros: f64,
    /// Unpacked time divided by fused time.
    pub speedup: f64,
}

/// The types that weights are unpacked to.
const FLOATS: [TensorType; 3] = [TensorType::F32, TensorType::F16, TensorType::BF16];

/// Compares the fastest kernel of each measured tile product with the fastest float product of the
/// same size, if both were measured.
pub fn fused_speedups(measurements: &[Measurement]) -> Vec<FusedSpeedup> {
    let products = || measurements.iter().filter_map(|m| Some((m, m.product.filter(|case| !case.across)?)));
    let size = |case: &ProductCase| (case.rows, case.inputs, case.outputs);
    let mut found: Vec<FusedSpeedup> = Vec::new();
    let packed = |case: &ProductCase| case.layout == WeightLayout::Tiles && !FLOATS.contains(&case.weight);
    for (measured, case) in products().filter(|(_, case)| packed(case)) {
        let floats =
            products().filter(|(_, other)| FLOATS.contains(&other.weight) && size(other) == size(&case));
        // Several kernels may have measured the same product; the fastest one is the alternative.
        let quickest = floats.min_by(|a, b| a.0.micros.total_cmp(&b.0.micros));
        let Some((floats, unpacked)) = quickest.map(|(m, case)| (case.weight, m.micros)) else { continue };
        let (rows, inputs, outputs) = size(&case);
        let (format, fused) = (case.weight.to_string(), measured.micros);
        let same = found.iter_mut().find(|f| {
            (f.format.as_str(), f.rows, f.inputs, f.outputs) == (format.as_str(), rows, inputs, outputs)
        });
        match same {
            Some(other) if other.fused_micros <= fused => {}
            Some(other) => (other.fused_micros, other.speedup) = (fused, unpacked / fused),
            None => found.push(FusedSpeedup {
                format,
                rows,
                inputs,
                outputs,
                fused_micros: fused,
                unpacked: floats.to_string(),
                unpacked_micros: unpacked,
                speedup: unpacked / fused,
            }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MachinePeaks;
    use latent_types::ActivationType;

    fn measured(weight: TensorType, layout: WeightLayout, rows: usize, micros: f64) -> Measurement {
        let limits = MachinePeaks {
            read_bandwidth: 1.0,
            int8_macs: 1.0,
            f32_macs: 1.0,
            f16_macs: 0.0,
            bf16_macs: 0.0,
        };
        let (activation, across, inputs, outputs, skipped) = (ActivationType::A8, false, 256, 64, 0);
        let case = ProductCase { weight, layout, activation, across, rows, inputs, outputs, skipped };
        Measurement {
            operation: "linear",
            case: String::new(),
            kernel: String::new(),
            level: "avx2",
            threads: 1,
            calls: 1,
            micros,
            gb_per_s: 0.0,
            gflop_per_s: 0.0,
            bound: None,
            of_limit: None,
            limits,
            product: Some(case),
        }
    }

    #[test]
    fn the_fastest_kernels_of_the_same_size_are_compared() {
        let (rows, tiles) = (WeightLayout::Rows, WeightLayout::Tiles);
        let found = fused_speedups(&[
            measured(TensorType::F32, rows, 1, 80.0),
            measured(TensorType::BF16, tiles, 1, 40.0),
            measured(TensorType::Q4_K, tiles, 1, 20.0),
            measured(TensorType::Q4_K, tiles, 1, 10.0),
            measured(TensorType::Q4_K, rows, 1, 1.0),
            measured(TensorType::Q8_0, tiles, 8, 5.0),
        ]);
        assert_eq!(found.len(), 1, "rows are not packed, and floats were not measured with eight rows");
        let one = &found[0];
        assert_eq!(
            (one.format.as_str(), one.rows, one.fused_micros, one.unpacked_micros),
            ("Q4_K", 1, 10.0, 40.0)
        );
        assert!(one.unpacked == "BF16" && (one.speedup - 4.0).abs() < 1e-12);
    }
}
