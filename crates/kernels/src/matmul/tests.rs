//! Every tier that the machine has, against a plain f64 product, over odd sizes.

use crate::{A8Block, A8Rows, Acts, KernelFn, MatmulFn, Rows, RowsMut, Scratch, WeightMatrix};
use base::{Activation, KernelContract, Layout, OpKind, TensorType, Tier};
use quant::tiles::{ROWS, TileLayout};
use std::collections::HashMap;

struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

/// Inputs in one form, and the numbers that they stand for.
struct Inputs {
    exact: Vec<f32>,
    bits: Vec<u16>,
    blocks: Vec<A8Block>,
    rows: usize,
    cols: usize,
}

impl Inputs {
    fn new(random: &mut Random, rows: usize, cols: usize, activation: Activation) -> Inputs {
        let x = random.numbers(rows * cols);
        let row_blocks = A8Rows::row_blocks(cols);
        let mut inputs = Inputs {
            exact: x.clone(),
            bits: vec![0; rows * cols],
            blocks: vec![A8Block::ZERO; rows * row_blocks],
            rows,
            cols,
        };
        crate::to_bf16(&x, &mut inputs.bits);
        for (row, blocks) in x.chunks_exact(cols).zip(inputs.blocks.chunks_exact_mut(row_blocks)) {
            crate::quantise_a8(row, blocks);
        }
        for i in 0..rows * cols {
            inputs.exact[i] = match activation {
                Activation::F32 | Activation::F16 => x[i],
                Activation::Bf16 => f32::from_bits(u32::from(inputs.bits[i]) << 16),
                Activation::A8 => {
                    let (row, col) = (i / cols, i % cols);
                    let block = &inputs.blocks[row * row_blocks + col / 32];
                    f32::from(block.codes[col % 32]) * block.scale
                }
            };
        }
        inputs
    }

    fn acts(&self, activation: Activation) -> Acts<'_> {
        let (rows, cols) = (self.rows, self.cols);
        match activation {
            Activation::F32 | Activation::F16 => Acts::F32(Rows::new(&self.exact, rows, cols, cols)),
            Activation::Bf16 => Acts::Bf16 { bits: &self.bits, rows, cols, stride: cols },
            Activation::A8 => Acts::A8(A8Rows::new(&self.blocks, rows, cols)),
        }
    }
}

/// Weight rows of random numbers in one format, and what they decode to.
fn weights(random: &mut Random, ty: TensorType, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
    let numbers = random.numbers(rows * cols);
    let mut bytes = vec![0; ty.row_bytes(cols).unwrap() * rows];
    quant::encode(ty, &numbers, &mut bytes).unwrap();
    let mut decoded = vec![0.0; rows * cols];
    quant::decode(ty, &bytes, &mut decoded).unwrap();
    (bytes, decoded)
}

fn run(
    kernel: MatmulFn,
    w: &WeightMatrix<'_>,
    x: &Acts<'_>,
    index: Option<&[u32]>,
    rows: usize,
    outs: std::ops::Range<usize>,
) -> Vec<f32> {
    let cols = outs.len();
    let mut y = vec![f32::NAN; rows * cols];
    kernel(w, x, index, outs, &mut RowsMut::new(&mut y, rows, cols, cols), &mut Scratch::default());
    y
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// The same rows in tiles.
fn tiled(ty: TensorType, bytes: &[u8], cols: usize) -> Vec<u8> {
    let layout = TileLayout::new(ty, cols).unwrap();
    let row_bytes = ty.row_bytes(cols).unwrap();
    let mut tiles = Vec::new();
    for rows in bytes.chunks(ROWS * row_bytes) {
        let mut tile = vec![0; layout.tile_bytes()];
        layout.pack(rows, &mut tile);
        tiles.extend(tile);
    }
    tiles
}

#[test]
fn every_product_agrees_with_f64_on_every_tier_and_cut() {
    let features = crate::features();
    // bits of the portable form, which every other tier must give
    let mut truth: HashMap<(String, usize), Vec<u32>> = HashMap::new();
    for (contract, kernel) in crate::table() {
        let (KernelFn::Matmul(kernel) | KernelFn::MatmulT(kernel)) = kernel else { continue };
        if contract.tier > features.tier() {
            eprintln!("{} skipped: this machine has no {}", contract.name, contract.tier);
            continue;
        }
        let ty = contract.weight.unwrap_or(TensorType::IQ4_NL);
        let form = contract.name.strip_prefix(contract.tier.name()).unwrap_or(contract.name).to_owned();
        for (m, cols) in [
            (1, 256),
            (2, 512),
            (3, 768),
            (4, 256),
            (7, 256),
            (8, 256),
            (16, 256),
            (23, 512),
            (64, 256),
            (512, 256),
        ] {
            let cols = if ty.block_len() == 256 {
                cols
            } else {
                (cols / 8 + ty.block_len() * 3).next_multiple_of(ty.block_len())
            };
            let found = check(contract, *kernel, ty, (m, cols));
            let first = truth.entry((form.clone(), m)).or_insert_with(|| found.clone());
            assert!(*first == found, "{} differs from another tier at {m} rows", contract.name);
            if contract.tier == Tier::Avx2 && contract.layout == Layout::Tiles {
                super::WITHOUT_VNNI.set(true);
                assert!(*first == check(contract, *kernel, ty, (m, cols)), "{} without VNNI", contract.name);
                super::WITHOUT_VNNI.set(false);
            }
        }
    }
}

/// Checks one kernel with `m` rows; the bits of its results.
fn check(contract: &KernelContract, kernel: MatmulFn, ty: TensorType, (m, cols): (usize, usize)) -> Vec<u32> {
    let (name, activation) = (contract.name, contract.activation);
    let across = contract.op == OpKind::LinearT;
    let outputs = if across { cols } else { 37 };
    let random = &mut Random(m as u64 * 1000 + cols as u64);
    // a weight read across may be a part of its rows
    let (all_rows, from) = if across { (21 + 5, 5) } else { (outputs, 0) };
    let weight_rows = all_rows - from;
    let (bytes, decoded) = weights(random, ty, all_rows, cols);
    let decoded = &decoded[from * cols..];
    let tiles = if contract.layout == Layout::Tiles { tiled(ty, &bytes, cols) } else { Vec::new() };
    let w = match contract.layout {
        Layout::Rows => WeightMatrix::rows(ty, &bytes, all_rows, cols),
        Layout::Tiles => WeightMatrix::tiles(ty, &tiles, all_rows, cols),
    };
    let w = w.slice_rows(from..all_rows);
    let inner = if across { weight_rows } else { cols };
    let inputs = Inputs::new(random, m, inner, activation);
    let x = inputs.acts(activation);
    let y = run(kernel, &w, &x, None, m, 0..outputs);
    for i in 0..m {
        for o in 0..outputs {
            let weight =
                |k: usize| f64::from(if across { decoded[k * cols + o] } else { decoded[o * cols + k] });
            let term = |k: usize| weight(k) * f64::from(inputs.exact[i * inner + k]);
            let truth: f64 = (0..inner).map(term).sum();
            let size: f64 = (0..inner).map(|k| term(k).abs()).sum();
            let found = f64::from(y[i * outputs + o]);
            assert!(
                (found - truth).abs() <= 1e-5 * size.max(1e-3),
                "{name} {m}×{cols} row {i} output {o}: {found} {truth}"
            );
        }
    }
    // any cut of rows and outputs gives the same bits
    let cut = if across { ty.block_len().max(16).min(outputs) } else { 5 };
    let part = run(kernel, &w, &x, None, m, cut..outputs);
    for i in 0..m {
        assert_eq!(
            bits(&part[i * (outputs - cut)..(i + 1) * (outputs - cut)]),
            bits(&y[i * outputs + cut..(i + 1) * outputs]),
            "{name}"
        );
    }
    let index: Vec<u32> = vec![m as u32 - 1, 0];
    let picked = run(kernel, &w, &x, Some(&index), 2, 0..outputs);
    assert_eq!(bits(&picked[..outputs]), bits(&y[(m - 1) * outputs..]), "{name}");
    assert_eq!(bits(&picked[outputs..]), bits(&y[..outputs]), "{name}");
    bits(&y)
}
