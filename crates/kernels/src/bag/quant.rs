//! Rows of int8 and int4 in a layout of our own, and the row layouts of other programs.
//!
//! A cache line is what memory delivers, so a row begins on one and holds nothing but its elements:
//! 128 elements are two lines (int8) or one (int4). Scale and bias stand in an array beside the
//! rows, four bytes per row, which stays in cache where the rows themselves do not. PyTorch's and
//! FBGEMM's layouts put them into the row, whose 136 or 132 bytes then touch three lines or four.
//!
//! An element is `scale * q + bias`.

use half::f16;

/// Scale and bias of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Params {
    pub scale: f16,
    pub bias: f16,
}

/// Bytes from one int8 row to the next.
pub fn int8_row_bytes(dim: usize) -> usize {
    whole_lines(dim.next_multiple_of(16))
}

/// Bytes from one int4 row to the next.
pub fn int4_row_bytes(dim: usize) -> usize {
    whole_lines(dim.div_ceil(32) * 16)
}

/// Whole cache lines, or a power of two within one: no short row lies across two lines.
fn whole_lines(bytes: usize) -> usize {
    if bytes < 64 { bytes.next_power_of_two() } else { bytes.next_multiple_of(64) }
}

/// Quantises one row to int8. `row` has [`int8_row_bytes`] bytes; those behind `dim` become zero.
pub fn quantise_int8(values: &[f32], row: &mut [u8]) -> Params {
    row.fill(0);
    let (params, step) = fit(values, 255.0);
    for (q, value) in row.iter_mut().zip(values) {
        *q = level(*value, params, step, 255.0);
    }
    params
}

/// Quantises one row to int4. `row` has [`int4_row_bytes`] bytes; what is behind `dim` becomes zero.
pub fn quantise_int4(values: &[f32], row: &mut [u8]) -> Params {
    row.fill(0);
    let (params, step) = fit(values, 15.0);
    for (d, value) in values.iter().enumerate() {
        put_int4(row, d, level(*value, params, step, 15.0));
    }
    params
}

/// Element `d` of an int4 row. A group of 16 bytes holds 32 elements: the low halves the first 16,
/// the high halves the next, so that one load widens to two vectors without any shuffle.
pub fn int4_element(row: &[u8], d: usize) -> u8 {
    let (byte, shift) = int4_place(d);
    row[byte] >> shift & 15
}

fn put_int4(row: &mut [u8], d: usize, q: u8) {
    let (byte, shift) = int4_place(d);
    row[byte] |= q << shift;
}

fn int4_place(d: usize) -> (usize, u32) {
    (d / 32 * 16 + d % 16, if d % 32 < 16 { 0 } else { 4 })
}

/// The scale and bias that span the values, as half floats: what rounds them is told to the levels,
/// so that it costs no accuracy. Returns the step too, zero for a row of equal values.
fn fit(values: &[f32], levels: f32) -> (Params, f32) {
    let (low, high) = values
        .iter()
        .filter(|v| v.is_finite())
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)));
    if low > high {
        return (Params { scale: f16::ZERO, bias: f16::ZERO }, 0.0);
    }
    // Rounded down: the least value must be within reach from the rounded bias.
    let mut bias = clamped(low);
    if bias.to_f32() > low && bias > f16::MIN {
        bias = next_below(bias);
    }
    // Rounded up: the highest value must be within reach from the rounded bias.
    let mut scale = clamped((high - bias.to_f32()) / levels);
    if scale.to_f32() * levels < high - bias.to_f32() && scale < f16::MAX {
        scale = f16::from_bits(scale.to_bits() + 1);
    }
    let step = scale.to_f32().max(0.0);
    (Params { scale: f16::from_f32(step), bias }, step)
}

fn next_below(x: f16) -> f16 {
    match x.to_bits() {
        0 => f16::from_bits(0x8001),
        bits if x.is_sign_negative() => f16::from_bits(bits + 1),
        bits => f16::from_bits(bits - 1),
    }
}

fn clamped(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

fn level(value: f32, params: Params, step: f32, levels: f32) -> u8 {
    if step == 0.0 {
        return 0;
    }
    // A value that is no number becomes zero by the cast.
    ((value - params.bias.to_f32()) / step).round_ties_even().clamp(0.0, levels) as u8
}

/// The row layouts of other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// f16 scale, f16 bias, then a byte an element.
    FbgemmInt8,
    /// f16 scale, f16 bias, then two elements a byte, the even one in the low half.
    FbgemmInt4,
    /// A byte an element, then f32 scale, f32 bias.
    TorchInt8,
    /// Two elements a byte, the even one in the low half, then f16 scale, f16 bias.
    TorchInt4,
}

impl Foreign {
    pub fn is_int4(self) -> bool {
        matches!(self, Self::FbgemmInt4 | Self::TorchInt4)
    }

    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            Self::FbgemmInt8 => dim + 4,
            Self::TorchInt8 => dim + 8,
            Self::FbgemmInt4 | Self::TorchInt4 => dim.div_ceil(2) + 4,
        }
    }

    /// The elements of a row of so many bytes; none where no row has that size. An odd number of
    /// int4 elements looks like the even one above it.
    pub fn dim(self, row_bytes: usize) -> Option<usize> {
        let elements = row_bytes.checked_sub(self.row_bytes(0)).filter(|n| *n > 0)?;
        Some(if self.is_int4() { elements * 2 } else { elements })
    }

    fn elements(self, dim: usize) -> std::ops::Range<usize> {
        let bytes = if self.is_int4() { dim.div_ceil(2) } else { dim };
        match self {
            Self::FbgemmInt8 | Self::FbgemmInt4 => 4..4 + bytes,
            Self::TorchInt8 | Self::TorchInt4 => 0..bytes,
        }
    }

    /// One foreign row into one of ours. Scale and bias of 32 bits are rounded to 16: an element is
    /// off by 2⁻¹¹ of 255 steps and of the bias at most (more where they are below 6·10⁻⁵, the least
    /// that half floats hold in full).
    pub fn read(self, dim: usize, foreign: &[u8], row: &mut [u8]) -> Params {
        row.fill(0);
        let q = &foreign[self.elements(dim)];
        if self.is_int4() {
            for d in 0..dim {
                put_int4(row, d, q[d / 2] >> (d % 2 * 4) & 15);
            }
        } else {
            row[..dim].copy_from_slice(q);
        }
        let half = |at: usize| f16::from_le_bytes([foreign[at], foreign[at + 1]]);
        let single = |at: usize| {
            clamped(f32::from_le_bytes(foreign[at..at + 4].try_into().expect("four bytes")))
        };
        match self {
            Self::FbgemmInt8 | Self::FbgemmInt4 => Params { scale: half(0), bias: half(2) },
            Self::TorchInt8 => Params { scale: single(dim), bias: single(dim + 4) },
            Self::TorchInt4 => Params { scale: half(q.len()), bias: half(q.len() + 2) },
        }
    }

    /// One of our rows into a foreign one.
    pub fn write(self, dim: usize, row: &[u8], params: Params, foreign: &mut [u8]) {
        foreign.fill(0);
        let elements = self.elements(dim);
        let behind = elements.end;
        let q = &mut foreign[elements];
        if self.is_int4() {
            for d in 0..dim {
                q[d / 2] |= int4_element(row, d) << (d % 2 * 4);
            }
        } else {
            q.copy_from_slice(&row[..dim]);
        }
        let Params { scale, bias } = params;
        let halves = |at: usize, foreign: &mut [u8]| {
            foreign[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            foreign[at + 2..at + 4].copy_from_slice(&bias.to_le_bytes());
        };
        match self {
            Self::FbgemmInt8 | Self::FbgemmInt4 => halves(0, foreign),
            Self::TorchInt4 => halves(behind, foreign),
            Self::TorchInt8 => {
                foreign[behind..behind + 4].copy_from_slice(&scale.to_f32().to_le_bytes());
                foreign[behind + 4..behind + 8].copy_from_slice(&bias.to_f32().to_le_bytes());
            }
        }
    }
}
