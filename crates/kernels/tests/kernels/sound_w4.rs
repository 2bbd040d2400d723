//! Invalid arguments from safe code that kernels for 4-bit weights must refuse.
#![forbid(unsafe_code)]

use latent_kernels::{
    MatrixView, MatrixViewMut, ShapeError, W4Args, W4Codes, W4Fn, W4Form, W4Input, W4Matrix, W4Scales,
    W4Scratch, W4Shape, W4Stripes, w4_dequant_f16, w4_reduce, w4_table,
};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SHAPE: W4Shape = W4Shape { k: 64, n: 48, group: 32 };
const ROWS: usize = 32;

/// Whether a call panics.
fn panics(call: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}

#[test]
fn a_weight_of_another_shape_is_refused() {
    let (words, scales) = (vec![0; 8 * 48], vec![0; 2 * 48]);
    let of = |shape, words: usize, scales_len: usize, zeros: Option<&[u8]>| {
        let words = vec![0; words];
        let codes = zeros.map_or(W4Codes::E2m1, |zeros| W4Codes::Int4 { zeros });
        W4Matrix::new(shape, &words, W4Scales::F16(&scales[..scales_len]), codes).err()
    };
    assert_eq!(of(SHAPE, words.len(), scales.len(), None), None);
    let length = |what, needed, found| Some(ShapeError::Length { what, needed, found });
    assert_eq!(of(SHAPE, 383, 96, None), length("a matrix of 4-bit weights", 384, 383));
    assert_eq!(of(SHAPE, 384, 95, None), length("a matrix of group scales", 96, 95));
    assert_eq!(of(SHAPE, 384, 96, Some(&[0; 97])), length("a matrix of zero points", 96, 97));
    for bad in [
        W4Shape { k: 60, ..SHAPE },
        W4Shape { group: 0, ..SHAPE },
        W4Shape { group: 48, ..SHAPE },
        W4Shape { k: 1 << 40, n: 1 << 40, group: 8 },
        W4Shape { k: usize::MAX - 7, n: 2, group: 8 },
    ] {
        assert!(of(bad, 384, 96, None).is_some(), "{bad:?}");
    }
}

#[test]
fn kernels_refuse_ranges_beyond_weight_inputs_and_results() {
    let (words, scales) = (vec![0x7654_3210; 8 * 48], vec![0x3c00; 2 * 48]);
    let weight = W4Matrix::new(SHAPE, &words, W4Scales::F16(&scales), W4Codes::E2m1).unwrap();
    let x = vec![1.0; ROWS * SHAPE.k];
    let best = latent_kernels::features().tier();
    let mut tried = 0;
    // Rows, inputs, columns: beyond the end, inside a word or a panel, or with an end before the
    // start.
    let bad: [(Range<usize>, Range<usize>, Range<usize>); 7] = [
        (0..33, 0..64, 0..48),
        (0..32, 0..72, 0..48),
        (0..32, 4..64, 0..48),
        (0..32, 0..60, 0..48),
        (0..32, 0..64, 0..49),
        (Range { start: usize::MAX - 7, end: 8 }, 0..64, 0..48),
        (0..32, 0..64, Range { start: usize::MAX - 15, end: 16 }),
    ];
    for kernel in w4_table().iter().filter(|kernel| kernel.tier <= best) {
        let W4Fn::Matmul(function) = kernel.function else { continue };
        let mut panels = vec![0; kernel.form.panel_len(ROWS, SHAPE.k).unwrap()];
        let count = ROWS / kernel.form.panel_rows(ROWS);
        panels.resize(panels.len() * count, u32::MAX);
        let own = match kernel.form {
            W4Form::F32 => W4Input::from_rows(MatrixView::new(&x, ROWS, 64, 64)),
            form => W4Input::from_panels(form, &panels, ROWS, 64).unwrap(),
        };
        let run = |input: &W4Input<'_>, (rows, k, columns): (Range<usize>, Range<usize>, Range<usize>)| {
            panics(|| {
                let mut y = vec![0.0; ROWS * 64];
                let mut y = MatrixViewMut::new(&mut y, rows.len().min(ROWS), columns.len().min(64), 64);
                let args = W4Args { weight: &weight, input, rows, k, columns };
                function(&args, &mut y, &mut W4Scratch::default());
            })
        };
        assert!(!run(&own, (0..32, 0..64, 0..48)), "{}", kernel.name);
        for share in bad.clone() {
            assert!(run(&own, share.clone()), "{} {share:?}", kernel.name);
            tried += 1;
        }
        // Inputs in the form of another kernel, and of another length.
        let other = match kernel.form {
            W4Form::F32 => W4Input::from_panels(W4Form::Pairs, &[0; 32 * 32], ROWS, 64).unwrap(),
            _ => W4Input::from_rows(MatrixView::new(&x, ROWS, 64, 64)),
        };
        assert!(run(&other, (0..32, 0..64, 0..48)), "{}", kernel.name);
        let short = W4Input::from_rows(MatrixView::new(&x, ROWS, 56, 64));
        assert!(run(&short, (0..32, 0..56, 0..48)), "{}", kernel.name);
    }
    assert!(tried >= 7 * 8, "only {tried}");
}

#[test]
fn panels_decoded_weights_and_units_of_wrong_sizes_are_refused() {
    for form in [W4Form::Pairs, W4Form::TileRows, W4Form::Int16, W4Form::Int8] {
        let len = form.panel_len(3, 64).unwrap();
        assert!(W4Input::from_panels(form, &vec![0; len + 1], 3, 64).is_err(), "{form:?}");
        assert!(W4Input::from_panels(form, &vec![0; len], 3, 60).is_err(), "{form:?}");
        assert!(form.panel_len(8, usize::MAX - 7).is_err(), "{form:?}");
        let x = vec![0.0; 40 * 64];
        assert!(panics(|| form.pack(&MatrixView::new(&x, 40, 64, 64), &mut vec![0; len])), "{form:?}");
        assert!(panics(|| form.pack(&MatrixView::new(&x, 3, 64, 64), &mut vec![0; len - 1])), "{form:?}");
    }
    let (words, scales) = (vec![0; 8 * 48], vec![0; 2 * 48]);
    let weight = W4Matrix::new(SHAPE, &words, W4Scales::F16(&scales), W4Codes::Int4Sym).unwrap();
    let scratch = &mut W4Scratch::default();
    for kernel in w4_table().iter().filter(|kernel| kernel.tier <= latent_kernels::features().tier()) {
        let W4Fn::Dequant(decode) = kernel.function else { continue };
        for (k, columns) in
            [(0..72, 0..48), (4..64, 0..48), (0..64, 0..49), (0..64, Range { start: 40, end: 8 })]
        {
            let mut out = vec![0.0; 72 * 64];
            let mut out = MatrixViewMut::new(&mut out, k.len(), columns.len(), 64);
            assert!(panics(|| decode((&weight, k, columns), &mut out, scratch)), "{}", kernel.name);
        }
        let mut out = vec![latent_kernels::half::f16::ZERO; 64 * 48 - 1];
        assert!(w4_dequant_f16(decode, (&weight, 0..64, 0..48), (&mut out, 48), scratch).is_err());
    }
    let stripes = W4Stripes { rows: 3, columns: 5, k: 64, tile: (2, 4), slices: 2 };
    assert!(panics(|| assert_eq!(stripes.unit(stripes.units()).slice, 0)));
    let mut y = [0.0; 6];
    assert!(panics(|| w4_reduce(&[0.0; 11], 3, 0..3, &mut MatrixViewMut::new(&mut y, 2, 3, 3))));
}
