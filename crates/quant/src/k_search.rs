//! The search for scales and mins of K-quants: weighted least squares over several candidates.

use crate::blocks::extreme;

/// Scale ≥ 0 and min ≥ 0 of a sub-block.
fn fit_with_minimum(x: &[f32], levels: f32) -> (f32, f32) {
    let min = x.iter().copied().fold(0.0f32, f32::min);
    let max = x.iter().copied().fold(min, f32::max);
    if max <= min {
        return (0.0, -min);
    }
    let weight = |v: f32| v.abs() + (max - min) * 0.1;
    let mut best = (f32::INFINITY, 0.0, 0.0);
    for step in 0..=20 {
        let inverse = (levels + 0.1 * (step as f32 - 10.0)) / (max - min);
        let quant = |v: f32| ((v - min) * inverse).round().clamp(0.0, levels);
        let (mut w, mut wx, mut wc, mut wcc, mut wcx) = (0.0f32, 0.0, 0.0, 0.0, 0.0);
        for &v in x {
            let (k, c) = (weight(v), quant(v));
            w += k;
            wx += k * v;
            wc += k * c;
            wcc += k * c * c;
            wcx += k * c * v;
        }
        let mut scale = 0.0;
        let mut low = f32::INFINITY;
        let determinant = w * wcc - wc * wc;
        // Equal quants leave scale and min undetermined, but rounding rarely makes the determinant exactly zero.
        if determinant > 1e-4 * w * wcc {
            scale = (w * wcx - wx * wc) / determinant;
            low = (wcc * wx - wc * wcx) / determinant;
        }
        if low > 0.0 {
            low = 0.0;
            scale = if wcc > 0.0 { wcx / wcc } else { 0.0 };
        }
        let error: f32 = x.iter().map(|&v| weight(v) * (scale * quant(v) + low - v).powi(2)).sum();
        if error < best.0 {
            best = (error, scale, -low);
        }
    }
    if best.0.is_finite() { (best.1, best.2) } else { ((max - min) / levels, -min) }
}

/// Scale of a sub-block with quants from −n to n − 1.
pub(crate) fn fit_symmetric(x: &[f32], n: f32) -> f32 {
    let extreme = extreme(x);
    if extreme == 0.0 || !extreme.is_finite() {
        return 0.0;
    }
    let mut best = (f32::INFINITY, extreme / -n);
    for step in -9..=9 {
        let inverse = -(n + 0.1 * step as f32) / extreme;
        let (mut cx, mut cc) = (0.0f32, 0.0);
        for &v in x {
            let c = (v * inverse).round().clamp(-n, n - 1.0);
            cx += v * v * c * v;
            cc += v * v * c * c;
        }
        if cc > 0.0 {
            let scale = cx / cc;
            let error: f32 = x
                .iter()
                .map(|&v| v * v * (scale * (v * inverse).round().clamp(-n, n - 1.0) - v).powi(2))
                .sum();
            if error < best.0 {
                best = (error, scale);
            }
        }
    }
    best.1
}

/// 1 / d, or 0 for a scale that is zero, infinite or NaN, so that quants stay defined.
pub(crate) fn safe_inverse(d: f32) -> f32 {
    if d == 0.0 || !d.is_finite() { 0.0 } else { 1.0 / d }
}

/// Quantized scales and mins of all sub-blocks, with the super-block scales `d` and `dmin`.
pub(crate) fn scales_and_mins<const N: usize>(
    x: &[f32],
    levels: f32,
    top: f32,
) -> ([u8; N], [u8; N], f32, f32) {
    let fits: [(f32, f32); N] =
        std::array::from_fn(|g| fit_with_minimum(&x[g * (256 / N)..(g + 1) * (256 / N)], levels));
    let largest = |pick: fn(&(f32, f32)) -> f32| fits.iter().map(pick).fold(0.0f32, f32::max);
    let (d, dmin) = (largest(|f| f.0) / top, largest(|f| f.1) / top);
    let (id, im) = (safe_inverse(d), safe_inverse(dmin));
    let quant = |v: f32| v.round().clamp(0.0, top) as u8;
    (fits.map(|f| quant(f.0 * id)), fits.map(|f| quant(f.1 * im)), d, dmin)
}

/// The quant nearest to `v` for a scale and a min.
pub(crate) fn nearest(v: f32, scale: f32, min: f32, levels: f32) -> u8 {
    ((v + min) * safe_inverse(scale)).round().clamp(0.0, levels) as u8
}

/// The quant nearest to `v` for a scale and the zero point `n`.
pub(crate) fn nearest_symmetric(v: f32, scale: f32, n: f32) -> u8 {
    ((v * safe_inverse(scale)).round().clamp(-n, n - 1.0) + n) as u8
}
