//! Every kernel against a plain reference, over awkward shapes.

use half::{bf16, f16};
use hither_kernels::bag::hot::{EMPTY, Hot, HotMap};
use hither_kernels::bag::prefetch::{Hint, Prefetch};
use hither_kernels::bag::quant::{self, Params};
use hither_kernels::bag::touch::Touch;
use hither_kernels::bag::{
    Bags, Dtype, Error, Ids, OutOfRange, Pooling, Prepared, Scratch, Settings, Table, TableBags,
    embed,
};
use hither_kernels::detect::Isa;
use hither_kernels::threads::{Pinning, Threads};
use proptest::prelude::*;

/// A table with its values in full, as a reader of its rows sees them.
#[derive(Debug, Clone)]
struct Sample {
    dtype: Dtype,
    rows: usize,
    dim: usize,
    pooling: Pooling,
    padding: Option<i64>,
    data: Vec<u8>,
    params: Vec<Params>,
    values: Vec<Vec<f32>>,
    hot: Option<(HotMap, Vec<u8>, Vec<Params>)>,
    prefetch: Prefetch,
}

impl Sample {
    fn new(dtype: Dtype, rows: usize, dim: usize, pooling: Pooling, seed: u64) -> Self {
        let mut state = seed;
        let (mut data, mut params, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rows {
            let row: Vec<f32> = (0..dim).map(|_| number(&mut state)).collect();
            let (bytes, param, seen) = stored(dtype, &row);
            data.extend(bytes);
            params.extend(param);
            values.push(seen);
        }
        Self {
            dtype,
            rows,
            dim,
            pooling,
            padding: None,
            data,
            params,
            values,
            hot: None,
            prefetch: Prefetch::Off,
        }
    }

    /// Copies of every third row, two lines apart from each other.
    fn with_hot(mut self) -> Self {
        let third: Vec<u32> = (0..self.rows as u32).rev().step_by(3).collect();
        let map = HotMap::new(self.rows, &third);
        let bytes = self.dtype.row_bytes(self.dim);
        let (mut data, mut params) = (Vec::new(), Vec::new());
        for id in map.slots() {
            // What stands in an empty slot must not matter.
            let at = if *id == EMPTY { 0 } else { *id as usize };
            data.extend_from_slice(&self.data[at * bytes..(at + 1) * bytes]);
            data.extend([0xff; 128]);
            params.extend(self.params.get(at));
        }
        self.hot = Some((map, data, params));
        self
    }

    fn table(&self) -> Table<'_> {
        let stride = self.dtype.row_bytes(self.dim);
        Table {
            dtype: self.dtype,
            rows: self.rows,
            dim: self.dim,
            stride,
            data: &self.data,
            params: &self.params,
            pooling: self.pooling,
            padding: self.padding,
            hot: self.hot.as_ref().map(|(map, data, params)| Hot {
                map,
                data,
                stride: stride + 128,
                params,
            }),
            prefetch: self.prefetch,
        }
    }
}

fn number(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 2.0
}

/// A row's bytes and params, and the values that they stand for.
fn stored(dtype: Dtype, row: &[f32]) -> (Vec<u8>, Option<Params>, Vec<f32>) {
    let mut bytes = vec![0; dtype.row_bytes(row.len())];
    match dtype {
        Dtype::F32 => (row.iter().flat_map(|x| x.to_le_bytes()).collect(), None, row.to_vec()),
        Dtype::F16 => {
            let halves: Vec<f16> = row.iter().map(|x| f16::from_f32(*x)).collect();
            let bytes = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
            (bytes, None, halves.iter().map(|x| x.to_f32()).collect())
        }
        Dtype::Bf16 => {
            let halves: Vec<bf16> = row.iter().map(|x| bf16::from_f32(*x)).collect();
            let bytes = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
            (bytes, None, halves.iter().map(|x| x.to_f32()).collect())
        }
        Dtype::Int8 => {
            let params = quant::quantise_int8(row, &mut bytes);
            let (scale, bias) = (params.scale.to_f32(), params.bias.to_f32());
            let seen = (0..row.len()).map(|d| f32::from(bytes[d]) * scale + bias).collect();
            (bytes, Some(params), seen)
        }
        Dtype::Int4 => {
            let params = quant::quantise_int4(row, &mut bytes);
            let (scale, bias) = (params.scale.to_f32(), params.bias.to_f32());
            let seen = |d| f32::from(quant::int4_element(&bytes, d)) * scale + bias;
            let seen = (0..row.len()).map(seen).collect();
            (bytes, Some(params), seen)
        }
    }
}

/// Pools in double precision, straight from the definition.
fn expected(samples: &[Sample], call: &Call) -> Vec<f64> {
    let width: usize = samples.iter().map(|s| s.dim).sum();
    let mut out = vec![0.0; call.batch * width];
    let mut column = 0;
    for (t, sample) in samples.iter().enumerate() {
        for b in 0..call.batch {
            let at = t * call.batch + b;
            let positions = call.offsets[at] as usize..call.offsets[at + 1] as usize;
            let counted: Vec<usize> =
                positions.filter(|p| Some(call.ids[*p]) != sample.padding).collect();
            let used: Vec<usize> = counted.iter().copied().filter(|p| call.ids[*p] != -1).collect();
            for d in 0..sample.dim {
                let value = |p: &usize| f64::from(sample.values[call.ids[*p] as usize][d]);
                let weight = |p: &usize| call.weights.as_ref().map_or(1.0, |w| f64::from(w[*p]));
                let sum: f64 = used.iter().map(|p| value(p) * weight(p)).sum();
                out[b * width + column + d] = match sample.pooling {
                    Pooling::Sum => sum,
                    Pooling::Mean => sum / counted.len().max(1) as f64,
                    Pooling::Max if used.is_empty() => 0.0,
                    Pooling::Max => used.iter().map(value).fold(f64::NEG_INFINITY, f64::max),
                };
            }
        }
        column += sample.dim;
    }
    out
}

#[derive(Debug, Clone)]
struct Call {
    batch: usize,
    ids: Vec<i64>,
    offsets: Vec<i64>,
    weights: Option<Vec<f32>>,
}

impl Call {
    fn bags(&self) -> Bags<'_> {
        Bags {
            batch: self.batch,
            ids: Ids::I64(&self.ids),
            offsets: &self.offsets,
            weights: self.weights.as_deref(),
        }
    }
}

fn settings(isa: Isa) -> Settings {
    Settings { isa, out_of_range: OutOfRange::Error }
}

fn run(samples: &[Sample], bags: &Bags, settings: &Settings) -> Vec<f32> {
    let tables: Vec<Table> = samples.iter().map(Sample::table).collect();
    let mut out = vec![f32::NAN; bags.batch * samples.iter().map(|s| s.dim).sum::<usize>()];
    embed(&tables, bags, &mut out, settings).expect("a good call");
    out
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let dims = vec![1, 3, 8, 15, 16, 17, 31, 32, 48, 64, 96, 100, 128, 192, 256, 300];
    let poolings = vec![Pooling::Sum, Pooling::Mean, Pooling::Max];
    let shape = (prop::sample::select(Dtype::ALL.to_vec()), 1..40usize);
    let rest = (prop::sample::select(dims), prop::sample::select(poolings), any::<u64>());
    (shape, rest, any::<bool>(), any::<bool>()).prop_map(
        |((dtype, rows), (dim, pooling, seed), hot, pads)| {
            let mut sample = Sample::new(dtype, rows, dim, pooling, seed);
            if hot {
                sample = sample.with_hot();
            }
            sample.padding = pads.then_some(rows as i64 / 2);
            sample
        },
    )
}

/// Bags of 0 to 5 ids, now and then of hundreds, with repeated, pruned and padding ids among them.
fn any_call(samples: &[Sample]) -> impl Strategy<Value = Call> + use<> {
    let rows: Vec<usize> = samples.iter().map(|s| s.rows).collect();
    let weighted = samples.iter().all(|s| s.pooling != Pooling::Max);
    let length = prop_oneof![8 => 0..6usize, 1 => 100..400usize];
    (1..9usize, any::<bool>()).prop_flat_map(move |(batch, weights)| {
        let rows = rows.clone();
        let weights = weights && weighted;
        prop::collection::vec((length.clone(), any::<u64>()), rows.len() * batch).prop_map(
            move |bags| {
                let mut call = Call { batch, ids: vec![], offsets: vec![0], weights: None };
                for (at, (length, seed)) in bags.iter().enumerate() {
                    let mut state = *seed;
                    for _ in 0..*length {
                        let x = (number(&mut state) + 2.0) / 4.0;
                        let id = (x * (rows[at / batch] as f32 + 1.0)) as i64 - 1;
                        call.ids.push(id.min(rows[at / batch] as i64 - 1));
                    }
                    call.offsets.push(call.ids.len() as i64);
                }
                let mut state = call.ids.len() as u64;
                call.weights =
                    weights.then(|| call.ids.iter().map(|_| number(&mut state)).collect());
                call
            },
        )
    })
}

fn any_case() -> impl Strategy<Value = (Vec<Sample>, Call)> {
    prop::collection::vec(any_sample(), 1..5)
        .prop_flat_map(|samples| (Just(samples.clone()), any_call(&samples)))
}

fn any_prefetch() -> impl Strategy<Value = Prefetch> {
    let hint = prop::sample::select(vec![Hint::L1, Hint::L2]);
    let ahead = (hint, 64..1usize << 20).prop_map(|(hint, bytes)| Prefetch::Ahead { hint, bytes });
    prop_oneof![1 => Just(Prefetch::Off), 6 => ahead]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_reference_follows_the_definition((samples, call) in any_case()) {
        let out = run(&samples, &call.bags(), &settings(Isa::Reference));
        // Values are at most 2, weights too: each of n additions rounds a sum of at most n · 4.
        let longest = call.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0) as f64;
        let bound = (longest + 4.0) * (longest + 1.0) * 8.0 * f64::from(f32::EPSILON);
        for (found, expected) in out.iter().zip(expected(&samples, &call)) {
            prop_assert!((f64::from(*found) - expected).abs() <= bound, "{found} {expected}");
        }
    }

    #[test]
    fn every_kernel_agrees_with_the_reference_to_the_last_bit(
        (samples, call) in any_case(),
        prefetch in any_prefetch(),
    ) {
        let bags = call.bags();
        let plain = run(&samples, &bags, &settings(Isa::Reference));
        let short: Vec<u32> = call.ids.iter().map(|id| *id as u32).collect();
        let mut samples = samples;
        samples.iter_mut().for_each(|sample| sample.prefetch = prefetch);
        for isa in Isa::available() {
            let settings = settings(isa);
            prop_assert_eq!(&run(&samples, &bags, &settings), &plain, "{}", isa);
            let bags = Bags { ids: Ids::U32(&short), ..bags };
            prop_assert_eq!(&run(&samples, &bags, &settings), &plain, "{} short ids", isa);
        }
    }

    /// Requests that share a batch lie apart, some with weights; one with a bad id fails alone.
    #[test]
    fn requests_that_share_a_batch_do_not_meet(
        (samples, first, second) in prop::collection::vec(any_sample(), 1..5).prop_flat_map(
            |samples| (Just(samples.clone()), any_call(&samples), any_call(&samples))
        ),
        bad in any::<bool>(),
    ) {
        let tables: Vec<Table> = samples.iter().map(Sample::table).collect();
        let isa = Isa::available().last().expect("the reference at least");
        let prepared = Prepared::new(tables, vec![], isa).expect("good tables");
        let alone = |call: &Call| run(&samples, &call.bags(), &settings(isa));
        let (mut out, mut scratch) = (Vec::new(), Scratch::default());
        // A request with a list of ids for each table.
        let lists: Vec<(Vec<i64>, Vec<i64>)> = (0..samples.len())
            .map(|t| {
                let all = &first.offsets[t * first.batch..=(t + 1) * first.batch];
                let mut ids = first.ids[all[0] as usize..all[first.batch] as usize].to_vec();
                if bad && t == samples.len() / 2 {
                    ids.push(samples[t].rows as i64);
                    let offsets = vec![ids.len() as i64; first.batch + 1];
                    return (ids, [&[0][..], &offsets[1..]].concat());
                }
                (ids, all.iter().map(|offset| offset - all[0]).collect())
            })
            .collect();
        out.resize((second.batch + first.batch) * prepared.width(), f32::NAN);
        let mut lookup = prepared.lookup(&mut scratch, &mut out);
        let mut errors = 0;
        for (t, (ids, offsets)) in lists.iter().enumerate() {
            let bags = second.bags().table(t);
            prop_assert_eq!(lookup.add(t, &bags, 0..second.batch, 0), Ok(0));
            let weights = first.weights.as_ref().map(|weights| {
                let start = first.offsets[t * first.batch] as usize;
                let mut own = weights[start..].to_vec();
                own.resize(ids.len(), 1.0);
                own
            });
            let weights = weights.as_deref();
            let bags = TableBags { ids: Ids::I64(ids), offsets, weights };
            prop_assert_eq!(prepared.check(t, &bags).is_err(), bad && t == samples.len() / 2);
            errors += lookup.add(t, &bags, 0..first.batch, second.batch).is_err() as usize;
        }
        lookup.finish();
        prop_assert_eq!(errors, usize::from(bad));
        let (theirs, ours) = out.split_at(second.batch * prepared.width());
        prop_assert_eq!(theirs, &alone(&second)[..]);
        if !bad {
            prop_assert_eq!(ours, &alone(&first)[..]);
        }
    }

    #[test]
    fn an_id_out_of_range_is_named_or_clamped_and_counted(
        (samples, mut call) in any_case(),
        at in any::<prop::sample::Index>(),
        above in 0..1_000_000i64,
        below in any::<bool>(),
    ) {
        prop_assume!(!call.ids.is_empty());
        let at = at.index(call.ids.len());
        let table = (call.offsets.partition_point(|o| *o <= at as i64) - 1) / call.batch;
        let rows = samples[table].rows;
        let last = rows as i64 - 1;
        let (id, nearest) = if below { (-2 - above, 0) } else { (last + 1 + above, last) };
        call.ids[at] = id;
        let tables: Vec<Table> = samples.iter().map(Sample::table).collect();
        let mut out = vec![0.0; call.batch * samples.iter().map(|s| s.dim).sum::<usize>()];
        for isa in Isa::available() {
            let mut settings = settings(isa);
            let error = embed(&tables, &call.bags(), &mut out, &settings);
            prop_assert_eq!(error, Err(Error::OutOfRange { table, position: at, id, rows }));
            settings.out_of_range = OutOfRange::Clamp;
            let clamped = embed(&tables, &call.bags(), &mut out, &settings);
            prop_assert_eq!(clamped, Ok(1));
            // A clamped id is a row like any other; asked for by its number, the padding is not.
            if samples[table].padding != Some(nearest) {
                let mut call = call.clone();
                call.ids[at] = nearest;
                prop_assert_eq!(&run(&samples, &call.bags(), &settings), &out);
            }
        }
    }

    #[test]
    fn foreign_rows_survive_the_journey(
        values in prop::collection::vec(-1e3f32..1e3, 1..200),
        layout in prop::sample::select(vec![
            quant::Foreign::FbgemmInt8,
            quant::Foreign::FbgemmInt4,
            quant::Foreign::TorchInt8,
            quant::Foreign::TorchInt4,
        ]),
    ) {
        let dim = values.len();
        let dtype = if layout.is_int4() { Dtype::Int4 } else { Dtype::Int8 };
        let (row, params, _) = stored(dtype, &values);
        let params = params.expect("quantised");
        let mut foreign = vec![0; layout.row_bytes(dim)];
        layout.write(dim, &row, params, &mut foreign);
        let mut back = vec![0xff; row.len()];
        prop_assert_eq!(layout.read(dim, &foreign, &mut back), params);
        prop_assert_eq!(back, row);
    }

    /// No value is further from its level than half a step.
    #[test]
    fn quantised_values_are_near(
        values in prop::collection::vec(-1f32..1.0, 1..200),
        exponent in -12..4i32,
    ) {
        let values: Vec<f32> = values.iter().map(|v| v * 10f32.powi(exponent)).collect();
        for dtype in [Dtype::Int8, Dtype::Int4] {
            let (_, params, seen) = stored(dtype, &values);
            let scale = params.expect("quantised").scale.to_f32();
            for (value, seen) in values.iter().zip(seen) {
                prop_assert!((value - seen).abs() <= scale * 0.5001, "{value} {seen} {scale}");
            }
        }
    }
}

/// Rows of two bytes at the end of their table too: a touch checks the bytes that it reads as a
/// lookup does, and refuses a table that they do not fit.
#[test]
fn a_touch_reads_whole_rows_and_no_more() {
    for (dtype, dim) in Dtype::ALL.into_iter().flat_map(|dtype| [1, 3, 16, 17].map(|d| (dtype, d)))
    {
        let sample = Sample::new(dtype, 9, dim, Pooling::Mean, 3).with_hot();
        let call = Call {
            batch: 2,
            ids: vec![8, 0, -1, 8, 8],
            offsets: vec![0, 1, 5],
            weights: Some(vec![1.0; 5]),
        };
        for isa in Isa::available() {
            for prefetch in Prefetch::CANDIDATES {
                let touch = Touch::new(&[sample.table()], prefetch, isa).expect("it fits");
                let scratch = &mut Scratch::default();
                touch.run(&call.bags(), 0..2, scratch).expect("all ids are rows");
            }
            let short = Table { data: &sample.data[..sample.data.len() - 1], ..sample.table() };
            assert!(matches!(Touch::new(&[short], Prefetch::Off, isa), Err(Error::Table { .. })));
        }
    }
}

/// Enough rows for several lists, cut into one part per thread.
#[test]
fn the_number_of_threads_changes_no_bit() {
    let samples: Vec<Sample> = [(Dtype::F32, 64), (Dtype::Int8, 128), (Dtype::F16, 17)]
        .into_iter()
        .map(|(dtype, dim)| Sample::new(dtype, 500, dim, Pooling::Mean, 7))
        .collect();
    let tables: Vec<Table> = samples.iter().map(Sample::table).collect();
    for pooling in [1, 40] {
        let mut state = 5;
        let batch = 300;
        let ids = (0..3 * batch * pooling)
            .map(|_| ((number(&mut state) + 2.0) / 4.0 * 499.0) as i64)
            .collect();
        let offsets = (0..=3 * batch as i64).map(|b| b * pooling as i64).collect();
        let call = Call { batch, ids, offsets, weights: None };
        let isa = Isa::available().last().expect("the reference at least");
        let one = run(&samples, &call.bags(), &settings(isa));
        let prepared = Prepared::new(tables.clone(), vec![], isa).expect("good tables");
        for threads in [1, 4] {
            let threads = Threads::<Scratch>::new(threads, Pinning::Free).expect("started");
            let mut out = vec![f32::NAN; batch * prepared.width()];
            let len = 23 * prepared.width();
            let work = |part: usize, out: &mut [f32], scratch: &mut Scratch| {
                let samples = part * 23..part * 23 + out.len() / prepared.width();
                let mut lookup = prepared.lookup(scratch, out);
                lookup.add_samples(&call.bags(), samples, 0).expect("good ids");
                lookup.finish();
            };
            threads.split_chunks(&mut Scratch::default(), &mut out, len, 4, &work);
            assert_eq!(one, out);
        }
    }
}

#[test]
fn a_call_that_does_not_fit_together_is_refused() {
    let sample = Sample::new(Dtype::F32, 10, 8, Pooling::Sum, 1);
    let tables = [sample.table()];
    let settings = settings(Isa::Reference);
    let refused = |bags: &Bags, len: usize| {
        let mut out = vec![0.0; len];
        embed(&tables, bags, &mut out, &settings).expect_err("a bad call")
    };
    let ids = [1i64, 2, 3];
    let bags = |offsets| Bags { batch: 2, ids: Ids::I64(&ids), offsets, weights: None };
    assert!(matches!(refused(&bags(&[0, 1]), 16), Error::Offsets { expected: 3, found: 2, .. }));
    assert!(matches!(refused(&bags(&[1, 1, 3]), 16), Error::Offset { position: 0, .. }));
    assert!(matches!(refused(&bags(&[0, 2, 1]), 16), Error::Offset { position: 2, .. }));
    assert!(matches!(refused(&bags(&[0, 2, 4]), 16), Error::Offset { position: 2, .. }));
    assert!(matches!(refused(&bags(&[0, -5, 3]), 16), Error::Offset { position: 1, .. }));
    assert!(matches!(refused(&bags(&[0, 1, 3]), 15), Error::Output { expected: 16, .. }));
    let weighted = Bags { weights: Some(&[1.0]), ..bags(&[0, 1, 3]) };
    assert!(matches!(refused(&weighted, 16), Error::Weights { ids: 3, found: 1 }));

    let mut short = sample.table();
    short.data = &short.data[..short.data.len() - 1];
    let mut out = vec![0.0; 16];
    let error = embed(&[short], &bags(&[0, 1, 3]), &mut out, &settings);
    assert!(matches!(error, Err(Error::Table { table: 0, .. })));
}

/// Nearly all hot rows find a slot, and a row is in one slot only.
#[test]
fn the_map_of_hot_rows_holds_them() {
    for count in [0, 1, 2, 100, 10_000] {
        let ids: Vec<u32> = (0..count).map(|i| i * 37 + 5).collect();
        let map = HotMap::new(1_000_000, &ids);
        let mut held: Vec<u32> = map.slots().iter().copied().filter(|id| *id != EMPTY).collect();
        held.sort_unstable();
        assert!(held.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(held.iter().all(|id| ids.binary_search(id).is_ok()));
        assert!(held.len() as f64 >= 0.9 * ids.len() as f64, "{} of {count}", held.len());
    }
    let twice_and_outside = HotMap::new(10, &[3, 3, 10, EMPTY]);
    assert_eq!(twice_and_outside.slots().iter().filter(|id| **id != EMPTY).count(), 1);
}

#[test]
fn no_tables_and_no_samples_are_nothing_to_do() {
    let settings = settings(Isa::available().last().expect("one"));
    let none = Bags { batch: 0, ids: Ids::I64(&[]), offsets: &[0], weights: None };
    assert_eq!(embed(&[], &none, &mut [], &settings), Ok(0));
    let sample = Sample::new(Dtype::F32, 10, 8, Pooling::Sum, 1);
    assert_eq!(embed(&[sample.table()], &none, &mut [], &settings), Ok(0));
}

/// Scales of all sizes, below zero, infinite and NaN; bags around the least and the most rows that
/// are summed in integers. Every instruction set gives the same bits, and finite ones are right.
#[test]
fn quantised_sums_do_not_depend_on_the_instruction_set() {
    let lengths = [3usize, 4, 5, 7, 8, 17, 300, 511, 512, 513, 8191, 8192, 8193];
    let forms = [(Dtype::Int8, 128), (Dtype::Int4, 128), (Dtype::Int8, 100), (Dtype::Int4, 70)];
    let wide = [(Dtype::Int8, 20), (Dtype::Int8, 192), (Dtype::Int4, 20), (Dtype::Int4, 200)];
    for (dtype, dim) in forms.into_iter().chain(wide) {
        // Down to denormal half floats; and all within an eighth of the largest.
        let odds = [None, Some(-1.0), Some(f32::INFINITY), Some(f32::NAN), Some(0.0)];
        for (odd, fall) in odds.map(|odd| (odd, 1.5f32)).into_iter().chain([(None, 1.01)]) {
            let mut sample = Sample::new(dtype, 64, dim, Pooling::Sum, 11);
            for (row, params) in sample.params.iter_mut().enumerate() {
                params.scale = f16::from_f32(fall.powi(-(row as i32)) * 700.0);
            }
            if let Some(odd) = odd {
                sample.params[40].scale = f16::from_f32(odd);
            }
            let mut state = 3;
            let mut call =
                Call { batch: lengths.len(), ids: vec![], offsets: vec![0], weights: None };
            for length in lengths {
                let ids = (0..length).map(|_| ((number(&mut state) + 2.0) / 4.0 * 63.0) as i64);
                call.ids.extend(ids);
                call.offsets.push(call.ids.len() as i64);
            }
            let bits = |isa| -> Vec<u32> {
                let out = run(std::slice::from_ref(&sample), &call.bags(), &settings(isa));
                // Which of the NaNs it is may differ.
                out.iter()
                    .map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
                    .collect()
            };
            let plain = bits(Isa::Reference);
            for isa in Isa::available() {
                assert!(bits(isa) == plain, "{dtype:?} {dim} {odd:?} {isa}");
            }
            if odd.is_none_or(|odd| odd == 0.0) {
                for (b, length) in lengths.into_iter().enumerate() {
                    let range = call.offsets[b] as usize..call.offsets[b + 1] as usize;
                    for d in [0, 15, 16, dim - 1] {
                        let exact: f64 = (call.ids[range.clone()].iter())
                            .map(|id| value(&sample, *id as usize, d))
                            .sum();
                        let found = f64::from(f32::from_bits(plain[b * dim + d]));
                        // In integers, half a step per row and four roundings at the end; else one
                        // rounding per row.
                        let largest = 700.0 * 255.0;
                        let rows = length as f64;
                        let bound = match (4..=8192).contains(&length) {
                            true => rows * 255.0 * 700.0 / f64::from(1 << 21) + exact * 3e-7,
                            false => rows * rows * largest * 6e-8,
                        };
                        assert!((found - exact).abs() <= bound, "{found} {exact} {bound} {length}");
                    }
                }
            }
        }
    }
}

/// The largest sums that a bag can have fit the integers that they are made in.
#[test]
fn the_largest_quantised_sums_are_exact() {
    for (dtype, most) in [(Dtype::Int8, 255.0), (Dtype::Int4, 15.0)] {
        let mut sample = Sample::new(dtype, 1, 128, Pooling::Sum, 1);
        sample.data.fill(0xff);
        // All bits of the mantissa.
        let scale = f16::from_bits(f16::ONE.to_bits() | 0x3ff);
        sample.params[0] = Params { scale, bias: f16::ZERO };
        for rows in [4, 512, 513, 8192] {
            let offsets = vec![0, rows];
            let ids = vec![0; rows as usize];
            let call = Call { batch: 1, ids, offsets, weights: None };
            let exact = (scale.to_f64() * most * rows as f64) as f32;
            for isa in Isa::available() {
                let out = run(std::slice::from_ref(&sample), &call.bags(), &settings(isa));
                assert!(out.iter().all(|x| *x == exact), "{isa} {rows}: {} {exact}", out[0]);
            }
        }
    }
}

fn value(sample: &Sample, row: usize, d: usize) -> f64 {
    let bytes = sample.dtype.row_bytes(sample.dim);
    let row_bytes = &sample.data[row * bytes..(row + 1) * bytes];
    let q = match sample.dtype {
        Dtype::Int8 => row_bytes[d],
        _ => quant::int4_element(row_bytes, d),
    };
    let Params { scale, bias } = sample.params[row];
    f64::from(scale.to_f32()) * f64::from(q) + f64::from(bias.to_f32())
}
