//! Matrices as callers hold them: rows of fp32 or bf16 at a fixed distance.

use half::bf16;

/// What a matrix may hold.
pub trait Element: sealed::Element {}
impl Element for f32 {}
impl Element for bf16 {}

pub(crate) mod sealed {
    use half::bf16;

    pub trait Element: bytemuck::Pod + Send + Sync {
        const IS_BF16: bool;
        fn widen(self) -> f32;
        /// To the nearest, ties to even.
        fn narrow(value: f32) -> Self;
    }

    impl Element for f32 {
        const IS_BF16: bool = false;
        #[inline(always)]
        fn widen(self) -> f32 {
            self
        }
        #[inline(always)]
        fn narrow(value: f32) -> Self {
            value
        }
    }

    impl Element for bf16 {
        const IS_BF16: bool = true;
        #[inline(always)]
        fn widen(self) -> f32 {
            f32::from_bits(u32::from(self.to_bits()) << 16)
        }
        /// Without branches, so that loops over it become vector code; `half`'s own does not.
        #[inline(always)]
        fn narrow(value: f32) -> Self {
            let bits = value.to_bits();
            let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            // A NaN whose payload sits in the low half must not become an infinity.
            let quiet = bits >> 16 | 0x40;
            bf16::from_bits(if value.is_nan() { quiet } else { nearest } as u16)
        }
    }
}

/// Rows to read, `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    pub data: &'a [T],
    pub rows: usize,
    pub stride: usize,
}

/// Rows to write, `stride` elements apart; what lies between them is left as it is.
pub struct RowsMut<'a, T> {
    pub data: &'a mut [T],
    pub rows: usize,
    pub stride: usize,
}

impl<'a, T> Rows<'a, T> {
    pub fn new(data: &'a [T], rows: usize, stride: usize) -> Self {
        Self { data, rows, stride }
    }

    /// Panics where the rows do not lie within the data: kernels read behind raw pointers.
    pub(crate) fn check(&self, width: usize) {
        assert!(fits(self.data.len(), self.rows, self.stride, width), "rows beyond their slice");
    }

    pub(crate) fn range(&self, first: usize, rows: usize) -> Self {
        Self { data: &self.data[first * self.stride..], rows, stride: self.stride }
    }

    pub(crate) fn row(&self, row: usize, width: usize) -> &'a [T] {
        &self.data[row * self.stride..][..width]
    }
}

impl<'a, T> RowsMut<'a, T> {
    pub fn new(data: &'a mut [T], rows: usize, stride: usize) -> Self {
        Self { data, rows, stride }
    }

    pub(crate) fn check(&self, width: usize) {
        assert!(fits(self.data.len(), self.rows, self.stride, width), "rows beyond their slice");
        assert!(self.rows <= 1 || self.stride >= width, "rows to write overlap");
    }

    pub(crate) fn row(&mut self, row: usize, width: usize) -> &mut [T] {
        &mut self.data[row * self.stride..][..width]
    }
}

fn fits(len: usize, rows: usize, stride: usize, width: usize) -> bool {
    let end = rows.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(width));
    rows == 0 || end.is_some_and(|end| end <= len)
}

/// Sixteen words in a cache line of their own.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub(crate) struct Line([u32; 16]);

// SAFETY: words of which every value, zero too, is valid.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above, and 64 bytes aligned to 64 have no padding.
unsafe impl bytemuck::Pod for Line {}

/// Memory of a thread's own, kept from call to call: it grows to the largest layer and stays.
#[derive(Default)]
pub struct LayerScratch {
    lines: Vec<Line>,
}

impl LayerScratch {
    pub(crate) fn bytes(&mut self, len: usize) -> &mut [u8] {
        let lines = len.div_ceil(size_of::<Line>());
        if self.lines.len() < lines {
            self.lines.resize(lines, Line::default());
        }
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }
}

/// Rows this many bytes apart fall into the same few sets of a first-level cache of 4 KiB a way.
pub(crate) fn competes(stride_bytes: usize) -> bool {
    stride_bytes.is_multiple_of(2048)
}

/// Copies rows of `width` elements to another type and a longer stride, zeros in the gap.
pub(crate) fn convert<X: Element, T: Element>(
    x: Rows<'_, X>,
    width: usize,
    out: &mut [T],
    stride: usize,
    round: impl Fn(f32) -> T,
) {
    for (row, out) in out.chunks_exact_mut(stride).take(x.rows).enumerate() {
        let (values, gap) = out.split_at_mut(width);
        for (out, value) in values.iter_mut().zip(x.row(row, width)) {
            *out = round(value.widen());
        }
        gap.fill(T::narrow(0.0));
    }
}
