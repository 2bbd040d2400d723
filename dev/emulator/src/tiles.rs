//! The tile registers of one thread, and the semantics of the instructions.

/// Number of tile registers.
const COUNT: usize = 8;

/// Maximum number of rows of a tile.
const ROWS: usize = 16;

/// Maximum number of bytes per row.
const ROW_BYTES: usize = 64;

/// Which factors of a product of bytes are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSigns {
    pub left: bool,
    pub right: bool,
}

/// The processor would raise an exception for the instruction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TileRefusal;

/// Configuration and contents.
#[derive(Clone)]
pub(crate) struct TileRegisters {
    configured: bool,
    /// Rows and bytes per row of each tile.
    shapes: [(usize, usize); COUNT],
    rows: [[[u8; ROW_BYTES]; ROWS]; COUNT],
}

impl TileRegisters {
    /// Unconfigured, zero tiles.
    pub const fn new() -> TileRegisters {
        TileRegisters { configured: false, shapes: [(0, 0); COUNT], rows: [[[0; ROW_BYTES]; ROWS]; COUNT] }
    }

    /// Loads a configuration (LDTILECFG). Palette 0 removes the configuration, palette 1 has eight
    /// tiles.
    pub fn configure(&mut self, config: &[u8; 64]) -> Result<(), TileRefusal> {
        *self = TileRegisters::new();
        if config[0] == 0 {
            return Ok(());
        }
        let reserved = config[2..16].iter().chain(&config[32..48]).chain(&config[56..]);
        // Byte 0 is the palette. From byte 16 on there are the bytes per row (16 bits each) and
        // from byte 48 on the rows (8 bits each) of 16 tiles; palette 1 has only eight. Byte 1, the
        // start row, is nonzero only after a load was interrupted, which does not happen here.
        if config[0] != 1 || config[1] != 0 || reserved.into_iter().any(|byte| *byte != 0) {
            return Err(TileRefusal);
        }
        for tile in 0..COUNT {
            let bytes = usize::from(u16::from_le_bytes([config[16 + 2 * tile], config[17 + 2 * tile]]));
            let rows = usize::from(config[48 + tile]);
            if rows > ROWS || bytes > ROW_BYTES || (rows == 0) != (bytes == 0) {
                return Err(TileRefusal);
            }
            self.shapes[tile] = (rows, bytes);
        }
        self.configured = true;
        Ok(())
    }

    /// The configuration in the form that [`configure`](Self::configure) reads.
    pub fn config(&self) -> [u8; 64] {
        let mut config = [0; 64];
        config[0] = u8::from(self.configured);
        for (tile, (rows, bytes)) in self.shapes.iter().enumerate() {
            config[16 + 2 * tile..18 + 2 * tile].copy_from_slice(&(*bytes as u16).to_le_bytes());
            config[48 + tile] = *rows as u8;
        }
        config
    }

    /// Removes the configuration and zeroes the tiles.
    pub fn release(&mut self) {
        *self = TileRegisters::new();
    }

    fn shape(&self, tile: usize) -> Result<(usize, usize), TileRefusal> {
        let shape = self.shapes.get(tile).copied().filter(|(rows, _)| self.configured && *rows > 0);
        shape.ok_or(TileRefusal)
    }

    /// Zeroes a tile.
    pub fn zero(&mut self, tile: usize) -> Result<(), TileRefusal> {
        self.shape(tile)?;
        self.rows[tile] = [[0; ROW_BYTES]; ROWS];
        Ok(())
    }

    /// Loads a tile. `row` receives a row's index and fills its bytes.
    pub fn load(&mut self, tile: usize, row: impl Fn(usize, &mut [u8])) -> Result<(), TileRefusal> {
        let (rows, bytes) = self.words(tile)?;
        // A load zeroes all of the register that its shape does not cover.
        self.rows[tile] = [[0; ROW_BYTES]; ROWS];
        for i in 0..rows {
            row(i, &mut self.rows[tile][i][..bytes]);
        }
        Ok(())
    }

    /// Stores a tile. `row` receives each row's index and bytes.
    pub fn store(&self, tile: usize, row: impl Fn(usize, &[u8])) -> Result<(), TileRefusal> {
        let (rows, bytes) = self.words(tile)?;
        (0..rows).for_each(|i| row(i, &self.rows[tile][i][..bytes]));
        Ok(())
    }

    /// The shape of a tile. Its rows must consist of whole 32-bit words.
    fn words(&self, tile: usize) -> Result<(usize, usize), TileRefusal> {
        self.shape(tile)
            .and_then(|shape| if shape.1.is_multiple_of(4) { Ok(shape) } else { Err(TileRefusal) })
    }

    /// Rows of the sum, words per row of the sum, and words per row of the left factor.
    fn product(&self, sum: usize, left: usize, right: usize) -> Result<(usize, usize, usize), TileRefusal> {
        let ((m, n), (a, k), (b, c)) = (self.words(sum)?, self.words(left)?, self.words(right)?);
        // The processor refuses products of a register with itself, or into one of the factors.
        let distinct = sum != left && left != right && sum != right;
        if distinct && m == a && n == c && k == 4 * b { Ok((m, n / 4, b)) } else { Err(TileRefusal) }
    }

    fn word(&self, tile: usize, row: usize, column: usize) -> [u8; 4] {
        let bytes = &self.rows[tile][row];
        std::array::from_fn(|i| bytes[4 * column + i])
    }

    /// sum += left · right (TDPBF16PS).
    #[inline(always)]
    pub fn dot_bf16(&mut self, sum: usize, left: usize, right: usize) -> Result<(), TileRefusal> {
        // Kernels are compared bit by bit, so this follows the order of operations in Intel's
        // manual: even and odd terms have separate accumulators with one rounding per term, which
        // are then added to each other and to the sum. Denormal inputs and results are flushed to
        // zero, whatever MXCSR says.
        let (m, n, k) = self.product(sum, left, right)?;
        let pair = |tiles: &TileRegisters, tile, row, column| {
            let [a, b, c, d] = tiles.word(tile, row, column);
            let wide = |low, high| flushed(f32::from_bits(u32::from_le_bytes([0, 0, low, high])));
            [wide(a, b), wide(c, d)]
        };
        let mut factors = [[[0.0; 2]; 16]; 16];
        for (row, line) in factors.iter_mut().enumerate().take(k) {
            for (column, factor) in line.iter_mut().enumerate().take(n) {
                *factor = pair(self, right, row, column);
            }
        }
        for row in 0..m {
            let mut sums = [[0.0f32; 2]; 16];
            for (term, line) in factors.iter().enumerate().take(k) {
                let [even, odd] = pair(self, left, row, term);
                for (sum, factor) in sums.iter_mut().zip(line).take(n) {
                    sum[0] = flushed(even.mul_add(factor[0], sum[0]));
                    sum[1] = flushed(odd.mul_add(factor[1], sum[1]));
                }
            }
            for (column, [even, odd]) in sums.iter().enumerate().take(n) {
                let before = flushed(f32::from_le_bytes(self.word(sum, row, column)));
                let after = flushed(before + flushed(even + odd));
                self.rows[sum][row][4 * column..][..4].copy_from_slice(&after.to_le_bytes());
            }
        }
        Ok(())
    }

    /// sum += left · right with four bytes per word and 32-bit accumulators (TDPBSSD and its
    /// variants), which wrap on overflow.
    pub fn dot_bytes(
        &mut self,
        sum: usize,
        left: usize,
        right: usize,
        signs: ByteSigns,
    ) -> Result<(), TileRefusal> {
        let (m, n, k) = self.product(sum, left, right)?;
        let widen = |byte: u8, signed| if signed { i32::from(byte as i8) } else { i32::from(byte) };
        for row in 0..m {
            for column in 0..n {
                let mut total = i32::from_le_bytes(self.word(sum, row, column));
                for term in 0..k {
                    let pairs = self.word(left, row, term).into_iter().zip(self.word(right, term, column));
                    for (a, b) in pairs {
                        total = total.wrapping_add(widen(a, signs.left) * widen(b, signs.right));
                    }
                }
                self.rows[sum][row][4 * column..][..4].copy_from_slice(&total.to_le_bytes());
            }
        }
        Ok(())
    }
}

/// Flushes denormals to zero.
#[inline(always)]
fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(value) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tiles 0 and 1 are the sum and the left factor with `m` rows; tile 2 is the right factor with
    /// `k` rows. `n` and `k` count words.
    fn configured(m: u8, n: u8, k: u8) -> TileRegisters {
        let mut config = [0; 64];
        config[0] = 1;
        for (tile, (rows, words)) in [(m, n), (m, k), (k, n)].into_iter().enumerate() {
            config[16 + 2 * tile] = 4 * words;
            config[48 + tile] = rows;
        }
        let mut tiles = TileRegisters::new();
        tiles.configure(&config).unwrap();
        assert_eq!(tiles.config(), config);
        tiles
    }

    fn fill(tiles: &mut TileRegisters, tile: usize, value: impl Fn(usize, usize) -> [u8; 4]) {
        tiles
            .load(tile, |row, bytes| {
                let words = bytes.chunks_exact_mut(4).enumerate();
                words.for_each(|(column, word)| word.copy_from_slice(&value(row, column)));
            })
            .unwrap();
    }

    fn pair(a: f32, b: f32) -> [u8; 4] {
        let ([_, _, a, b], [_, _, c, d]) = (a.to_le_bytes(), b.to_le_bytes());
        [a, b, c, d]
    }

    #[test]
    fn products_of_bf16_are_sums_of_pairs() {
        let mut tiles = configured(3, 5, 7);
        let left = |row: usize, term: usize| (row + term) as f32 - 4.0;
        let right = |term: usize, column: usize| 0.5 * term as f32 - column as f32;
        fill(&mut tiles, 1, |row, word| pair(left(row, 2 * word), left(row, 2 * word + 1)));
        fill(&mut tiles, 2, |word, column| pair(right(2 * word, column), right(2 * word + 1, column)));
        fill(&mut tiles, 0, |_, _| 1.0f32.to_le_bytes());
        tiles.dot_bf16(0, 1, 2).unwrap();
        for row in 0..3 {
            for column in 0..5 {
                let truth = 1.0 + (0..14).map(|i| left(row, i) * right(i, column)).sum::<f32>();
                assert_eq!(f32::from_le_bytes(tiles.word(0, row, column)), truth);
            }
        }
    }

    #[test]
    fn products_of_bytes_respect_signs() {
        let mut tiles = configured(1, 1, 1);
        for (signs, truth) in [
            (ByteSigns { left: true, right: true }, 2),
            (ByteSigns { left: false, right: true }, -510),
            (ByteSigns { left: true, right: false }, -254),
            (ByteSigns { left: false, right: false }, 255 * 254),
        ] {
            fill(&mut tiles, 0, |_, _| [0; 4]);
            fill(&mut tiles, 1, |_, _| [255, 0, 0, 0]);
            fill(&mut tiles, 2, |_, _| [254, 9, 9, 9]);
            tiles.dot_bytes(0, 1, 2, signs).unwrap();
            assert_eq!(i32::from_le_bytes(tiles.word(0, 0, 0)), truth, "{signs:?}");
        }
    }

    #[test]
    fn small_numbers_are_zero_and_shapes_must_fit() {
        let mut tiles = configured(1, 1, 1);
        fill(&mut tiles, 0, |_, _| f32::from_bits(1).to_le_bytes());
        fill(&mut tiles, 1, |_, _| pair(1e-30, 1.0));
        fill(&mut tiles, 2, |_, _| pair(1e-30, 0.0));
        tiles.dot_bf16(0, 1, 2).unwrap();
        assert_eq!(tiles.word(0, 0, 0), [0; 4]);
        assert_eq!(tiles.dot_bf16(0, 1, 1), Err(TileRefusal));
        assert_eq!(configured(2, 1, 1).dot_bf16(0, 2, 1), Err(TileRefusal));
        assert_eq!(TileRegisters::new().zero(0), Err(TileRefusal));
        tiles.release();
        assert_eq!(tiles.zero(0), Err(TileRefusal));
        let mut config = [0; 64];
        (config[0], config[48], config[16]) = (1, 17, 4);
        assert_eq!(tiles.configure(&config), Err(TileRefusal));
    }
}
