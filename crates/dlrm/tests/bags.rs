//! Embedding bags against PyTorch's and FBGEMM's operators (fixtures/bags.py), on every instruction
//! set: tables of floats, and rows that those programs quantised.

use crate::common;

use common::{assert_near, assert_within, fixture, floats, integers};
use hither_data::Checkpoint;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::quant::{Foreign, Params};
use hither_kernels::bag::{Bags, Dtype, Ids, OutOfRange, Pooling, Settings, Table, embed};
use hither_kernels::detect::Isa;

/// A table of the fixture as our kernels read it.
struct Stored {
    dtype: Dtype,
    dim: usize,
    data: Vec<u8>,
    params: Vec<Params>,
}

impl Stored {
    fn view(&self, pooling: Pooling, padding: Option<i64>) -> Table<'_> {
        let stride = self.dtype.row_bytes(self.dim);
        Table {
            dtype: self.dtype,
            rows: self.data.len() / stride,
            dim: self.dim,
            stride,
            data: &self.data,
            params: &self.params,
            pooling,
            padding,
            hot: None,
            prefetch: Prefetch::default(),
        }
    }
}

/// What is asked of a table.
struct Query {
    ids: Vec<i64>,
    offsets: Vec<i64>,
    weights: Vec<f32>,
    padding: i64,
}

/// `sum`, `mean`, `max` or `sum_weighted`, with `_padding` behind or without.
fn mode(name: &str) -> (Pooling, bool, bool) {
    let (name, padded) = name.strip_suffix("_padding").map_or((name, false), |name| (name, true));
    let (pooling, weighted) = match name {
        "sum" | "pruned_sum" => (Pooling::Sum, false),
        "sum_weighted" => (Pooling::Sum, true),
        "mean" => (Pooling::Mean, false),
        "max" => (Pooling::Max, false),
        _ => panic!("there is no mode {name}"),
    };
    (pooling, weighted, padded)
}

impl Query {
    fn of(file: &Checkpoint) -> Self {
        Self {
            ids: integers(file, "indices"),
            offsets: integers(file, "offsets"),
            weights: floats(file, "weights"),
            padding: integers(file, "padding_index")[0],
        }
    }

    fn bags(&self) -> usize {
        self.offsets.len() - 1
    }

    /// What each instruction set makes of it.
    fn ask(&self, table: &Stored, mode_name: &str) -> Vec<(Isa, Vec<f32>)> {
        let (pooling, weighted, padded) = mode(mode_name);
        let view = table.view(pooling, padded.then_some(self.padding));
        let bags = Bags {
            batch: self.bags(),
            ids: Ids::I64(&self.ids),
            offsets: &self.offsets,
            weights: weighted.then_some(&self.weights),
        };
        let run = |isa| {
            let mut out = vec![f32::NAN; self.bags() * table.dim];
            let settings = Settings { isa, out_of_range: OutOfRange::Error };
            embed(&[view], &bags, &mut out, &settings).expect("pooled");
            (isa, out)
        };
        Isa::available().map(run).collect()
    }

    /// The sum over each bag's ids of what one row contributes, weighted as the ids are.
    fn summed(&self, weighted: bool, one: impl Fn(usize) -> f64) -> Vec<f64> {
        let weight = |at: usize| if weighted { f64::from(self.weights[at].abs()) } else { 1.0 };
        let row = |at: usize| usize::try_from(self.ids[at]).map_or(0.0, |id| weight(at) * one(id));
        self.offsets.windows(2).map(|w| (w[0] as usize..w[1] as usize).map(row).sum()).collect()
    }
}

fn open() -> (Checkpoint, Query) {
    let file = Checkpoint::open(fixture("bags.safetensors")).expect("the fixture");
    let query = Query::of(&file);
    (file, query)
}

fn float_table(file: &Checkpoint, name: &str, dtype: Dtype) -> Stored {
    let tensor = &file.tensors[&format!("{name}.table")];
    Stored { dtype, dim: tensor.shape[1], data: tensor.bytes.to_vec(), params: Vec::new() }
}

/// The rows of another program in our form.
fn foreign_table(file: &Checkpoint, name: &str, layout: Foreign) -> Stored {
    let tensor = &file.tensors[name];
    let (rows, bytes) = (tensor.shape[0], tensor.shape[1]);
    let dim = layout.dim(bytes).expect("a row's size");
    assert_eq!(layout.row_bytes(dim), bytes);
    let dtype = if layout.is_int4() { Dtype::Int4 } else { Dtype::Int8 };
    let stride = dtype.row_bytes(dim);
    let mut data = vec![0xee; rows * stride];
    let pairs = tensor.bytes.chunks(bytes).zip(data.chunks_mut(stride));
    let params = pairs.map(|(foreign, row)| layout.read(dim, foreign, row)).collect();
    Stored { dtype, dim, data, params }
}

#[test]
fn tables_of_floats_are_pooled_as_pytorch_pools_them() {
    let (file, query) = open();
    let all = ["sum", "mean", "max", "sum_weighted"];
    let padded = all.map(|mode| format!("{mode}_padding"));
    let mut compared = 0;
    for dim in [3, 17, 64] {
        for (name, dtype) in [("f32", Dtype::F32), ("f16", Dtype::F16), ("bf16", Dtype::Bf16)] {
            let name = format!("d{dim}.{name}");
            let table = float_table(&file, &name, dtype);
            assert_eq!(table.dim, dim);
            for mode in all.into_iter().chain(padded.iter().map(String::as_str)) {
                let result = format!("{name}.{mode}");
                if !file.tensors.contains_key(&result) {
                    continue;
                }
                let expected = floats(&file, &result);
                for (isa, found) in query.ask(&table, mode) {
                    assert_near(&format!("{result} on {isa}"), &found, &expected);
                }
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 3 * (8 + 4 + 4), "modes of fp32, and of the 16-bit types");
}

/// PyTorch's own 16-bit sums round the result once more: to 2⁻¹¹ of its size in fp16, 2⁻⁸ in bf16.
#[test]
fn sums_of_16_bits_are_pytorchs_before_it_rounds() {
    let (file, query) = open();
    for dim in [3, 17, 64] {
        for (name, dtype, unit) in
            [("f16", Dtype::F16, 2f64.powi(-11)), ("bf16", Dtype::Bf16, 2f64.powi(-8))]
        {
            let name = format!("d{dim}.{name}");
            let expected = floats(&file, &format!("{name}.sum_native"));
            let bounds: Vec<f64> =
                expected.iter().map(|sum| f64::from(sum.abs()) * 1.01 * unit + 1e-5).collect();
            for (isa, found) in query.ask(&float_table(&file, &name, dtype), "sum") {
                assert_within(&format!("{name} on {isa}"), &found, &expected, &bounds);
            }
        }
    }
}

/// Scales and biases of 16 bits are taken over as they are: nothing is off but fp32's own rounding,
/// 1e-5 of what is added up, as numbers of either sign may cancel.
#[test]
fn quantised_rows_with_16_bit_scales_are_pooled_as_they_were() {
    let (file, query) = open();
    let cases: [(&str, &[usize], Foreign, &[&str]); 3] = [
        ("4bit", &[2, 18, 64], Foreign::TorchInt4, &["sum", "sum_weighted"]),
        ("fbgemm_int8", &[16, 64], Foreign::FbgemmInt8, &["sum", "mean", "sum_weighted"]),
        ("fbgemm_int4", &[16, 64], Foreign::FbgemmInt4, &["sum", "mean", "sum_weighted"]),
    ];
    for (name, dims, layout, modes) in cases {
        for dim in dims {
            let table = foreign_table(&file, &format!("d{dim}.{name}.rows"), layout);
            let levels = if layout.is_int4() { 15.0 } else { 255.0 };
            let size = |row: usize| {
                let Params { scale, bias } = table.params[row];
                f64::from(bias.to_f32().abs() + levels * scale.to_f32())
            };
            for mode in modes {
                let result = format!("d{dim}.{name}.{mode}");
                let expected = floats(&file, &result);
                let sizes = query.summed(*mode == "sum_weighted", size);
                let bounds = spread(&sizes, *dim, |size| 1e-5 * size.max(1.0));
                for (isa, found) in query.ask(&table, mode) {
                    assert_within(&format!("{result} on {isa}"), &found, &expected, &bounds);
                }
            }
        }
    }
}

/// A bag's bound for each of its elements.
fn spread(bags: &[f64], dim: usize, bound: impl Fn(f64) -> f64) -> Vec<f64> {
    bags.iter().flat_map(|bag| vec![bound(*bag); dim]).collect()
}

/// PyTorch's byte rows have scales and biases of 32 bits, ours of 16: each is off by 2⁻¹¹ of its
/// size at most (their sizes here are far from fp16's subnormals), so that an element of level q is
/// off by 2⁻¹¹ (255 scale + |bias|) at most, and a bag by the sum of its rows, weighted.
#[test]
fn byte_rows_of_pytorch_lose_what_rounding_their_scales_takes() {
    let (file, query) = open();
    for dim in [3, 17, 64] {
        let name = format!("d{dim}.byte");
        let table = foreign_table(&file, &format!("{name}.rows"), Foreign::TorchInt8);
        let off = rounding_of_scales(&file, &format!("{name}.rows"), dim);
        for mode in ["sum", "sum_weighted"] {
            let result = format!("{name}.{mode}");
            let bags = query.summed(mode == "sum_weighted", |row| off[row]);
            let bounds = spread(&bags, dim, |off| off + 1e-5);
            let expected = floats(&file, &result);
            for (isa, found) in query.ask(&table, mode) {
                assert_within(&format!("{result} on {isa}"), &found, &expected, &bounds);
            }
        }
    }
}

/// Of each byte row of PyTorch: what an element may lose when scale and bias become half floats.
fn rounding_of_scales(file: &Checkpoint, name: &str, dim: usize) -> Vec<f64> {
    let rows = file.tensors[name].bytes.chunks(dim + 8);
    rows.map(|row| {
        let single = |at: usize| {
            f64::from(f32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes")))
        };
        2f64.powi(-11) * (255.0 * single(dim) + single(dim + 4).abs())
    })
    .collect()
}

/// A row that was pruned is asked for as −1 and adds nothing.
#[test]
fn pruned_rows_add_nothing() {
    let (file, query) = open();
    for (name, layout) in [("d17.byte", Foreign::TorchInt8), ("d18.4bit", Foreign::TorchInt4)] {
        let rows = format!("{name}.pruned_rows");
        let table = foreign_table(&file, &rows, layout);
        let map = integers(&file, &format!("{name}.pruned_map"));
        let ids: Vec<i64> = query.ids.iter().map(|id| map[*id as usize]).collect();
        assert!(ids.contains(&-1));
        let query = Query { ids, offsets: query.offsets.clone(), weights: vec![], padding: 0 };
        let off = match layout {
            Foreign::TorchInt8 => rounding_of_scales(&file, &rows, table.dim),
            _ => vec![0.0; table.params.len()],
        };
        let bags = query.summed(false, |row| off[row]);
        let bounds = spread(&bags, table.dim, |off| off + 1e-4);
        let expected = floats(&file, &format!("{name}.pruned_sum"));
        for (isa, found) in query.ask(&table, "pruned_sum") {
            assert_within(&format!("{name} on {isa}"), &found, &expected, &bounds);
        }
    }
}

/// Ids of 32 bits, and all tables of one call, give what each gives alone.
#[test]
fn tables_together_are_pooled_as_alone() {
    let (file, query) = open();
    let stored: Vec<Stored> =
        [("d3.f32", Dtype::F32), ("d17.f16", Dtype::F16), ("d64.bf16", Dtype::Bf16)]
            .map(|(name, dtype)| float_table(&file, name, dtype))
            .into();
    let tables: Vec<Table> = stored.iter().map(|table| table.view(Pooling::Sum, None)).collect();
    let ids: Vec<u32> = query.ids.iter().map(|id| *id as u32).collect::<Vec<_>>().repeat(3);
    let mut offsets = vec![0];
    for t in 0..3 {
        offsets.extend(query.offsets[1..].iter().map(|end| end + t * query.ids.len() as i64));
    }
    let bags = Bags { batch: query.bags(), ids: Ids::U32(&ids), offsets: &offsets, weights: None };
    let width = 3 + 17 + 64;
    for (position, isa) in Isa::available().enumerate() {
        let mut out = vec![f32::NAN; query.bags() * width];
        let settings = Settings { isa, out_of_range: OutOfRange::Error };
        embed(&tables, &bags, &mut out, &settings).expect("pooled");
        let alone: Vec<Vec<f32>> =
            stored.iter().map(|table| query.ask(table, "sum")[position].1.clone()).collect();
        for (bag, row) in out.chunks(width).enumerate() {
            let together = alone.iter().zip(&stored);
            let expected: Vec<f32> = together
                .flat_map(|(out, table)| out[bag * table.dim..][..table.dim].to_vec())
                .collect();
            assert_eq!(row, expected, "bag {bag} on {isa}");
        }
    }
}
