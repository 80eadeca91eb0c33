//! The three forms of ids say the same, in either width, aligned or not; and nothing that a client
//! can send makes decoding panic.

use bytes::Bytes;
use hither_dlrm::run::Sparse;
use hither_kernels::bag::Ids;
use hither_serve::config::ModelConfig;
use hither_serve::infer::InferRequest;
use hither_serve::inputs::{Features, Form, ModelShape, Signature};
use hither_serve::receive::Budget;
use hither_serve::server::Limits;
use hither_serve::tensor::{Data, Tensor};
use proptest::prelude::*;

const TABLES: usize = 3;
const DENSE: usize = 2;

fn signature(ids_per_bag: Vec<usize>) -> Signature {
    let tables = (0..TABLES).map(|t| (format!("t{t}"), 100)).collect();
    let shape = ModelShape { dense: DENSE, tables, outputs: 1 };
    let form = if ids_per_bag.is_empty() { Form::Joined } else { Form::Matrix };
    let config = ModelConfig { max_batch_size: 64, ..ModelConfig::default() };
    Signature::new("m", shape, form, ids_per_bag, &config)
}

fn request(inputs: Vec<Tensor>) -> InferRequest {
    InferRequest {
        model: "m".into(),
        version: String::new(),
        id: String::new(),
        inputs,
        outputs: Vec::new(),
        timeout: None,
        held: Budget::new(&Limits::default()).client().hold(0).expect("nothing"),
    }
}

/// Integers of either width, `shift` bytes behind an aligned address.
fn integers(name: &str, shape: &[usize], values: &[i64], is_short: bool, shift: usize) -> Tensor {
    let mut bytes = vec![0u8; shift];
    for value in values {
        match is_short {
            true => bytes.extend((*value as i32).to_le_bytes()),
            false => bytes.extend(value.to_le_bytes()),
        }
    }
    let datatype = if is_short { "INT32" } else { "INT64" };
    tensor(name, datatype, shape, Bytes::from(bytes).slice(shift..))
}

fn tensor(name: &str, datatype: &str, shape: &[usize], bytes: Bytes) -> Tensor {
    let shape = shape.iter().map(|dim| *dim as i64).collect();
    Tensor { name: name.into(), datatype: datatype.into(), shape, data: Data::Raw(bytes) }
}

fn dense(samples: usize) -> Tensor {
    let bytes = Bytes::from(vec![0u8; samples * DENSE * 4]);
    tensor("dense", "FP32", &[samples, DENSE], bytes)
}

/// The bags as the engine sees them: `[table][sample]`.
fn bags(features: &Features) -> Vec<Vec<Vec<i64>>> {
    let lists = features.lists();
    let request = features.request(&lists);
    let ids = |ids: Ids, from: i64, to: i64| -> Vec<i64> {
        let range = from as usize..to as usize;
        match ids {
            Ids::I64(ids) => ids[range].to_vec(),
            Ids::U32(ids) => ids[range].iter().map(|id| i64::from(*id as i32)).collect(),
        }
    };
    let samples = features.samples;
    let bag = |table: usize, sample: usize| match request.sparse {
        Sparse::Joined(bags) => {
            let at = table * samples + sample;
            ids(bags.ids, bags.offsets[at], bags.offsets[at + 1])
        }
        Sparse::PerTable { tables, .. } => {
            let bags = tables[table];
            ids(bags.ids, bags.offsets[sample], bags.offsets[sample + 1])
        }
    };
    (0..TABLES).map(|table| (0..samples).map(|sample| bag(table, sample)).collect()).collect()
}

fn any_bags() -> impl Strategy<Value = Vec<Vec<Vec<i64>>>> {
    let bag = prop::collection::vec(-1i64..100, 0..5);
    (1usize..7).prop_flat_map(move |samples| {
        let table = prop::collection::vec(bag.clone(), samples);
        prop::collection::vec(table, TABLES)
    })
}

proptest! {
    #[test]
    fn joined_and_per_table_lists_say_the_same(
        expected in any_bags(), is_short: bool, shift in 0usize..8, with_last: bool,
    ) {
        let samples = expected[0].len();
        let all: Vec<i64> = expected.iter().flatten().flatten().copied().collect();
        let lengths: Vec<i64> = expected.iter().flatten().map(|bag| bag.len() as i64).collect();
        let joined = vec![
            dense(samples),
            integers("values", &[all.len()], &all, is_short, shift),
            integers("lengths", &[TABLES, samples], &lengths, !is_short, shift),
        ];
        let signature = signature(Vec::new());
        let features = signature.features(&mut request(joined)).unwrap();
        prop_assert_eq!(&bags(&features), &expected);

        let mut lists = vec![dense(samples)];
        for (t, table) in expected.iter().enumerate() {
            let ids: Vec<i64> = table.iter().flatten().copied().collect();
            let mut offsets = vec![0];
            for bag in table {
                offsets.push(offsets.last().unwrap() + bag.len() as i64);
            }
            offsets.truncate(samples + usize::from(with_last));
            lists.push(integers(&format!("t{t}.indices"), &[ids.len()], &ids, is_short, shift));
            lists.push(integers(&format!("t{t}.offsets"), &[offsets.len()], &offsets, !is_short, shift));
        }
        let features = signature.features(&mut request(lists)).unwrap();
        prop_assert_eq!(bags(&features), expected);
    }

    #[test]
    fn a_matrix_says_the_same(
        samples in 1usize..7, lengths in prop::collection::vec(1usize..4, TABLES), is_short: bool, shift in 0usize..8,
    ) {
        let width: usize = lengths.iter().sum();
        let rows: Vec<i64> = (0..(samples * width) as i64).collect();
        let inputs = vec![dense(samples), integers("sparse", &[samples, width], &rows, is_short, shift)];
        let features = signature(lengths.clone()).features(&mut request(inputs)).unwrap();
        let mut start = 0;
        for (table, length) in bags(&features).iter().zip(&lengths) {
            for (sample, bag) in table.iter().enumerate() {
                prop_assert_eq!(&bag[..], &rows[sample * width + start..][..*length]);
            }
            start += length;
        }
    }

    /// Wrong names, types, shapes and sizes in any combination: an answer or an error, no panic.
    #[test]
    fn any_tensors_are_decoded_or_refused(tensors in prop::collection::vec(any_tensor(), 0..8), fixed: bool) {
        let signature = signature(if fixed { vec![1, 2, 1] } else { Vec::new() });
        if let Ok(features) = signature.features(&mut request(tensors)) {
            bags(&features);
        }
    }
}

/// Bags are bounded where they are decoded: the engine does not look at their lengths again.
#[test]
fn a_bag_that_is_too_long_is_refused_by_the_name_of_its_table() {
    let config = ModelConfig { ids_per_bag_max: 3, ..ModelConfig::default() };
    let tables = (0..TABLES).map(|t| (format!("t{t}"), 100)).collect();
    let shape = ModelShape { dense: DENSE, tables, outputs: 1 };
    let signature = Signature::new("m", shape, Form::Joined, Vec::new(), &config);
    let joined = |lengths: [i64; 6]| {
        let ids = vec![1; lengths.iter().sum::<i64>() as usize];
        vec![
            dense(2),
            integers("values", &[ids.len()], &ids, false, 0),
            integers("lengths", &[6], &lengths, false, 0),
        ]
    };
    let per_table = |last: i64| {
        let mut inputs = vec![dense(2)];
        for t in 0..TABLES {
            let end = if t == 1 { last } else { 2 };
            let (ids, name) = (vec![1; end as usize], format!("t{t}"));
            inputs.push(integers(&format!("{name}.indices"), &[ids.len()], &ids, true, 0));
            inputs.push(integers(&format!("{name}.offsets"), &[3], &[0, 1, end], true, 0));
        }
        inputs
    };
    for good in [joined([3, 0, 3, 3, 1, 0]), per_table(4)] {
        assert!(signature.features(&mut request(good)).is_ok());
    }
    for bad in [joined([3, 0, 3, 4, 1, 0]), per_table(5)] {
        let error = signature.features(&mut request(bad)).expect_err("four ids").to_string();
        assert!(error.contains("a bag of table `t1` has 4 ids; up to 3 are accepted"), "{error}");
    }
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let name = prop::sample::select(vec![
        "dense",
        "values",
        "lengths",
        "weights",
        "sparse",
        "t0.indices",
        "t0.offsets",
        "t1.indices",
        "t1.offsets",
        "t2.indices",
        "t2.offsets",
        "t2.weights",
        "t9.indices",
        "",
    ]);
    let datatype = prop::sample::select(vec!["FP32", "INT32", "INT64", "BYTES", ""]);
    let dim =
        prop_oneof![8 => -1i64..8, 1 => Just(i64::MAX), 1 => Just(i64::MIN), 1 => Just(1 << 40)];
    let shape = prop::collection::vec(dim, 0..4);
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64).prop_map(|bytes| Data::Raw(bytes.into())),
        prop::collection::vec(-2i64..9, 0..8).prop_map(Data::Int64),
        prop::collection::vec(-2i32..9, 0..8).prop_map(Data::Int32),
        prop::collection::vec(-2.0f32..9.0, 0..8).prop_map(Data::Fp32),
    ];
    (name, datatype, shape, data).prop_map(|(name, datatype, shape, data)| Tensor {
        name: name.into(),
        datatype: datatype.into(),
        shape,
        data,
    })
}
