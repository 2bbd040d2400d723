//! The table of cases: odd sizes for tests, sizes of real models for measurements.

use crate::attention::{ExpandedCase, KeysCase, LatentCase};
use crate::case::KernelCase;
use crate::product::ProductCase;
use crate::routing::RoutingRules;
use crate::rows::{RowCase, RowOp};
use crate::w4_table;
use latent_kernels::{KeyOrder, RopePairing, RouteGating, RouteGroupScore};
use latent_types::{ActivationType, CacheType, TensorType, WeightLayout};

/// A family of matmuls: weight layout, activation type, whether transposed, and formats.
type MatmulFamily = (WeightLayout, ActivationType, bool, fn(TensorType) -> bool);

const PRODUCTS: [MatmulFamily; 6] = [
    (WeightLayout::Rows, ActivationType::F32, false, latent_quant::can_decode),
    (WeightLayout::Tiles, ActivationType::A8, false, |ty| has_tiles(ty) && ty.is_quantized()),
    (WeightLayout::Tiles, ActivationType::F32, false, floats_in_tiles),
    (WeightLayout::Tiles, ActivationType::Bf16, false, |ty| has_tiles(ty) && ty.is_quantized()),
    (WeightLayout::Rows, ActivationType::F32, true, latent_quant::can_decode),
    (WeightLayout::Tiles, ActivationType::F32, true, has_tiles),
];

fn has_tiles(ty: TensorType) -> bool {
    latent_quant::tiles::FORMATS.contains(&ty)
}

fn floats_in_tiles(ty: TensorType) -> bool {
    has_tiles(ty) && !ty.is_quantized()
}

/// Input rows and columns for float tiles.
// They cover partial vectors, partial groups, several groups, and several parts of a row.
const FLOAT_SIZES: [(usize, usize); 10] =
    [(1, 771), (2, 515), (3, 260), (4, 35), (7, 129), (8, 1027), (16, 128), (23, 2179), (64, 262), (512, 67)];

/// Input rows and columns for formats with blocks of 256.
// The longest row exceeds the strip that is unpacked at a time in every format.
const PRODUCT_SIZES: [(usize, usize); 10] = [
    (1, 256),
    (2, 512),
    (3, 768),
    (4, 256),
    (7, 256),
    (8, 256),
    (16, 256),
    (23, 4352),
    (64, 256),
    (512, 256),
];

/// Output rows.
// Four full tiles and a partial one, which kernels process in groups of three and two.
const OUTPUTS: usize = 69;

/// Input rows, columns and outputs of matmuls by strips of 256 outputs, 512 inputs and 1024 rows.
// Each dimension exceeds a strip in at least one case.
const STRIP_SIZES: [(usize, usize, usize); 3] = [(33, 1280, 300), (48, 512, 544), (1050, 768, 70)];

/// Heads, latent, rope (0: attention without rope) and cached rows.
const LATENT_SIZES: [(usize, usize, usize, usize); 15] = [
    (1, 48, 8, 1),
    (16, 64, 16, 130),
    (5, 40, 6, 64),
    (12, 512, 64, 33),
    (16, 512, 64, 300),
    (8, 256, 32, 65),
    (16, 256, 64, 31),
    (20, 512, 64, 129),
    (23, 96, 16, 71),
    (37, 64, 16, 66),
    (128, 48, 8, 40),
    (1, 48, 0, 1),
    (16, 512, 0, 129),
    (20, 64, 0, 66),
    (37, 96, 0, 71),
];

/// Pairs of activation type and KV cache type.
fn arithmetic(separate: bool) -> impl Iterator<Item = (ActivationType, CacheType)> {
    let rounded = [
        (ActivationType::F16, CacheType::F16),
        (ActivationType::Bf16, CacheType::F16),
        (ActivationType::Bf16, CacheType::Bf16),
        (ActivationType::A8, CacheType::Int8),
        (ActivationType::F16, CacheType::Int8),
        (ActivationType::Bf16, CacheType::Int8),
        (ActivationType::Bf16, CacheType::Q8_0),
        (ActivationType::Bf16, CacheType::Q4_0),
        (ActivationType::Bf16, CacheType::Fp8),
    ];
    let rounded = rounded.into_iter().filter(move |_| !separate);
    CacheType::ALL.map(|cache| (ActivationType::F32, cache)).into_iter().chain(rounded)
}

/// Queries, position of the first, and widths of content, rope and values.
const EXPANDED_SIZES: [(usize, usize, usize, usize, usize); 17] = [
    (1, 0, 24, 8, 40),
    (1, 63, 24, 8, 40),
    (1, 64, 24, 8, 40),
    (16, 0, 24, 8, 40),
    (16, 60, 24, 8, 40),
    (7, 200, 24, 8, 40),
    (16, 300, 24, 8, 40),
    (5, 30, 17, 0, 33),
    (32, 100, 128, 64, 128),
    (3, 130, 192, 64, 256),
    (9, 65, 64, 32, 64),
    (7, 63, 7, 0, 3),
    (33, 95, 33, 31, 47),
    (70, 100, 40, 8, 16),
    (129, 0, 16, 16, 32),
    (33, 95, 256, 0, 256),
    (33, 130, 128, 0, 128),
];

/// Activation types of attention over expanded keys.
const FLOATS: [ActivationType; 3] = [ActivationType::F32, ActivationType::F16, ActivationType::Bf16];

/// Elements of a key and of a latent, and blocks of cached rows.
const KEY_SIZES: [(usize, usize, usize); 5] =
    [(13, 50, 1), (13, 50, 2), (1, 1, 1), (64, 256, 3), (128, 512, 1)];

/// Rows and widths of row-wise operations.
const ROW_SIZES: [(usize, usize); 8] =
    [(1, 1), (3, 7), (2, 16), (3, 31), (3, 33), (3, 512), (2, 1536), (3, 7168)];

/// Numbers of experts and routing rules: those of published models, and odd ones.
const ROUTES: [(usize, RoutingRules); 9] = {
    let plain = RoutingRules {
        gating: RouteGating::Softmax,
        bias: false,
        groups: (1, 1),
        group_score: RouteGroupScore::Max,
        masked_zero: false,
        norm: false,
        scale: 1.0,
        chosen: 6,
    };
    let v3 = RoutingRules {
        gating: RouteGating::Sigmoid,
        bias: true,
        groups: (8, 4),
        group_score: RouteGroupScore::TopTwoSum,
        masked_zero: false,
        norm: true,
        scale: 2.5,
        chosen: 8,
    };
    [
        // DeepSeek-V2-Lite.
        (64, plain),
        // DeepSeek-V2.
        (160, RoutingRules { groups: (8, 3), scale: 16.0, ..plain }),
        // DeepSeek-V3.
        (256, v3),
        // A.X-K2 counts masked groups as 0.
        (192, RoutingRules { masked_zero: true, ..v3 }),
        // GLM-4.7-Flash.
        (64, RoutingRules { groups: (1, 1), chosen: 4, scale: 1.8, ..v3 }),
        // Kimi-K2.
        (384, RoutingRules { groups: (1, 1), scale: 2.827, ..v3 }),
        (7, RoutingRules { chosen: 7, norm: true, ..plain }),
        (12, RoutingRules { gating: RouteGating::SoftmaxOfSelected, groups: (3, 2), chosen: 3, ..v3 }),
        (31, RoutingRules { gating: RouteGating::SqrtSoftplus, groups: (1, 1), chosen: 5, ..v3 }),
    ]
};

/// All cases of the tests.
pub fn cases() -> Vec<KernelCase> {
    let mut cases = products();
    for (heads, latent, rope, rows) in LATENT_SIZES {
        for (separate, splits) in [(false, 1), (false, 2), (true, 1), (true, 3)] {
            for (activation, cache) in arithmetic(separate) {
                let case = LatentCase { separate, activation, cache, heads, latent, rope, rows, splits };
                cases.push(KernelCase::Latent(case));
            }
        }
    }
    for (queries, position, nope, rope, values) in EXPANDED_SIZES {
        for activation in FLOATS {
            for selects in [false, true] {
                let case = ExpandedCase { activation, queries, position, nope, rope, values, selects };
                cases.push(KernelCase::Expanded(case));
            }
        }
    }
    for (nope, latent, blocks) in KEY_SIZES {
        for order in [KeyOrder::Keys, KeyOrder::Latents] {
            for activation in FLOATS {
                cases.push(KernelCase::Keys(KeysCase { activation, order, nope, latent, blocks }));
            }
        }
    }
    cases.extend(rows());
    cases.extend(w4_table::cases());
    cases
}

fn products() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for (layout, activation, across, formats) in PRODUCTS {
        for weight in TensorType::all().filter(|ty| formats(*ty)) {
            let floats = layout == WeightLayout::Tiles && floats_in_tiles(weight);
            for (rows, long) in if floats { FLOAT_SIZES } else { PRODUCT_SIZES } {
                let block = weight.block_len();
                // Formats with short blocks get shorter rows, of at least three blocks.
                let cols = if block == 256 || floats {
                    long
                } else {
                    (long / 8 + block * 3).next_multiple_of(block)
                };
                // A transposed product uses a slice of the weight's rows: an odd number of rows, or
                // whole tiles.
                let (inputs, outputs, skipped) = match across {
                    true if rows % 2 == 0 => (48, cols, 16),
                    true => (21, cols, 5),
                    false => (cols, OUTPUTS, 0),
                };
                let case = ProductCase { weight, layout, activation, across, rows, inputs, outputs, skipped };
                cases.push(KernelCase::Product(case));
            }
        }
    }
    for weight in [TensorType::Q4_0, TensorType::Q6_K, TensorType::NVFP4] {
        for (rows, inputs, outputs) in STRIP_SIZES {
            let (layout, activation, across, skipped) = (WeightLayout::Tiles, ActivationType::Bf16, false, 0);
            let case = ProductCase { weight, layout, activation, across, rows, inputs, outputs, skipped };
            cases.push(KernelCase::Product(case));
        }
    }
    cases
}

fn rows() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    let mut add = |op, rows, width| cases.push(KernelCase::Row(RowCase { op, rows, width }));
    for (rows, width) in ROW_SIZES {
        for op in [
            RowOp::RmsNorm,
            RowOp::QuantizeA8,
            RowOp::ToBf16,
            RowOp::Silu,
            RowOp::SiluMul,
            RowOp::SigmoidMul { heads: None },
            RowOp::SigmoidMul { heads: Some(3) },
            RowOp::SigmoidMul { heads: Some(16) },
            RowOp::L2Norm,
            RowOp::SoftplusDecay,
            RowOp::BoundedDecay,
            RowOp::GatedNorm,
            RowOp::ShortConv,
            RowOp::Relu2,
            RowOp::Add,
            RowOp::Scale,
            RowOp::Axpy,
            RowOp::CombineSplits { splits: 1 },
            RowOp::CombineSplits { splits: 5 },
        ] {
            add(op, rows, width);
        }
        for cache in CacheType::ALL {
            add(RowOp::Store(cache), rows, width);
            add(RowOp::Load(cache), rows, width);
        }
    }
    for cache in CacheType::ALL {
        for (keys, width, heads) in [(1, 24, 5), (63, 20, 8), (65, 36, 17), (200, 128, 32), (130, 128, 64)] {
            for exact in [true, false] {
                add(RowOp::IndexScores { heads, cache, exact }, keys, width);
            }
        }
    }
    for width in [1, 24, 75, 128] {
        add(RowOp::DeltaRule, 5, width);
        add(RowOp::DeltaChunks, 5, width);
        add(RowOp::DeltaChunks, 75, width);
    }
    for (rows, width) in [(4, 18), (16, 130), (31, 36), (33, 200), (49, 7)] {
        add(RowOp::DeltaChunks, rows, width);
    }
    for width in [2, 6, 32, 64] {
        for pairs in [RopePairing::Interleaved, RopePairing::NeoX] {
            add(RowOp::Rope(pairs), 3, width);
        }
    }
    for ty in TensorType::all().filter(|ty| latent_quant::can_decode(*ty)) {
        add(RowOp::Embed(ty, WeightLayout::Rows), 3, 3 * ty.block_len());
        if has_tiles(ty) {
            // More than one tile of rows.
            add(RowOp::Embed(ty, WeightLayout::Tiles), 21, 3 * ty.block_len());
        }
    }
    for (experts, routing) in ROUTES {
        add(RowOp::Route(routing), 5, experts);
    }
    cases
}

/// Inputs and outputs of a routed expert of DeepSeek-V2-Lite, an MLP of GLM-4.7-Flash, and a routed
/// expert of DeepSeek-V3.
const REAL_PRODUCTS: [(usize, usize); 3] = [(2048, 1408), (5120, 1536), (7168, 2048)];

/// All cases that are measured: at least one per kernel.
pub fn real_sizes() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for (layout, activation, across, formats) in PRODUCTS {
        for weight in TensorType::all().filter(|ty| formats(*ty)) {
            let mut add = |rows, inputs, outputs| {
                let skipped = 0;
                let case = ProductCase { weight, layout, activation, across, rows, inputs, outputs, skipped };
                cases.push(KernelCase::Product(case));
            };
            if across {
                // W_UK of one head: from 128 key elements to 512 latent elements.
                add(1, 128, 512);
                continue;
            }
            // Kernels with strips are only used for many rows.
            if activation != ActivationType::Bf16 {
                for (inputs, outputs) in REAL_PRODUCTS {
                    add(1, inputs, outputs);
                }
                // Verification of drafted tokens.
                add(8, 7168, 2048);
            }
            // Small batches, experts with few tokens of a prompt, and a prompt with shorter rows.
            if activation == ActivationType::A8 {
                for rows in [2, 4, 6, 12, 16, 24, 32, 64] {
                    add(rows, 7168, 2048);
                }
                add(512, 2048, 1408);
            }
            // A prompt.
            if activation != ActivationType::F32 || layout == WeightLayout::Tiles || weight == TensorType::F32
            {
                add(512, 7168, 2048);
            }
        }
    }
    for separate in [false, true] {
        for (activation, cache) in arithmetic(separate) {
            for (heads, latent, rope) in
                [(16, 512, 64), (20, 512, 64), (128, 512, 64), (4, 512, 64), (8, 256, 32)]
            {
                let (rows, splits) = (1024, 1);
                let case = LatentCase { separate, activation, cache, heads, latent, rope, rows, splits };
                cases.push(KernelCase::Latent(case));
            }
        }
    }
    for activation in FLOATS {
        for (nope, rope, values) in [(128, 64, 128), (192, 64, 256)] {
            let (queries, position) = (32, 992);
            cases.push(KernelCase::Expanded(ExpandedCase {
                activation,
                queries,
                position,
                nope,
                rope,
                values,
                selects: false,
            }));
        }
        for order in [KeyOrder::Keys, KeyOrder::Latents] {
            let (nope, latent, blocks) = (128, 512, 8);
            cases.push(KernelCase::Keys(KeysCase { activation, order, nope, latent, blocks }));
        }
    }
    let mut add = |op, width| cases.push(KernelCase::Row(RowCase { op, rows: 16, width }));
    for width in [2048, 7168] {
        for op in
            [RowOp::RmsNorm, RowOp::QuantizeA8, RowOp::ToBf16, RowOp::Silu, RowOp::SiluMul, RowOp::Relu2]
        {
            add(op, width);
        }
        for op in [RowOp::Add, RowOp::Scale, RowOp::Axpy] {
            add(op, width);
        }
    }
    // 32 heads of 128 elements, and the state of one head.
    for op in [RowOp::SoftplusDecay, RowOp::BoundedDecay, RowOp::ShortConv] {
        add(op, 4096);
    }
    for op in [RowOp::L2Norm, RowOp::GatedNorm, RowOp::DeltaRule] {
        add(op, 128);
    }
    cases.push(KernelCase::Row(RowCase { op: RowOp::DeltaChunks, rows: 512, width: 128 }));
    let mut add = |op, width| cases.push(KernelCase::Row(RowCase { op, rows: 16, width }));
    // 32 heads with values of 128 and 256 elements.
    for heads in [None, Some(32)] {
        add(RowOp::SigmoidMul { heads }, 4096);
        add(RowOp::SigmoidMul { heads }, 8192);
    }
    add(RowOp::CombineSplits { splits: 4 }, 512);
    // The indexers of GLM-5 and DeepSeek-V3.2 over many keys.
    let mut scan = |heads, cache, exact| {
        let op = RowOp::IndexScores { heads, cache, exact };
        cases.push(KernelCase::Row(RowCase { op, rows: 4096, width: 128 }));
    };
    for cache in CacheType::ALL {
        for heads in [32, 64] {
            scan(heads, cache, true);
            scan(heads, cache, false);
        }
    }
    let mut add = |op, width| cases.push(KernelCase::Row(RowCase { op, rows: 16, width }));
    for cache in CacheType::ALL {
        add(RowOp::Store(cache), 576);
        add(RowOp::Load(cache), 576);
    }
    for pairs in [RopePairing::Interleaved, RopePairing::NeoX] {
        add(RowOp::Rope(pairs), 64);
    }
    for ty in [TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0, TensorType::BF16] {
        add(RowOp::Embed(ty, WeightLayout::Rows), 7168);
    }
    for (experts, routing) in ROUTES.into_iter().take(5) {
        add(RowOp::Route(routing), experts);
    }
    cases.extend(w4_table::real_sizes());
    cases
}
