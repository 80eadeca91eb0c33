//! Traces of ids from every kind of file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hither_data::safetensors::{Entry, Writer};
use hither_data::{Columns, Dtype, Error, IdTrace};
use proptest::prelude::*;
use tempfile::TempPath;

const IDS: [i64; 6] = [5, 1, 1, 0, 9, 3];
const OFFSETS: [i64; 5] = [0, 2, 2, 5, 6];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn read(path: impl AsRef<Path>) -> Result<IdTrace, Error> {
    IdTrace::read(path, &Columns::default())
}

fn bags() -> IdTrace {
    IdTrace { ids: IDS.into(), offsets: Some(OFFSETS.into()), ..IdTrace::default() }
}

fn read_text(content: impl AsRef<[u8]>) -> Result<Vec<i64>, String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), content).expect("written");
    read(file.path()).map(|trace| trace.ids).map_err(|error| error.to_string())
}

#[test]
fn tuples_and_dictionaries_of_tensors() {
    for name in ["trace_tuple.pt", "trace_dict.pt"] {
        let mut trace = read(fixture(name)).expect(name);
        // Lengths of shape [tables, samples] tell the batch; those of one dimension do not.
        assert!(
            [(None, None), (Some(2), Some(2))].contains(&(trace.tables, trace.batch)),
            "{name}"
        );
        (trace.tables, trace.batch) = (None, None);
        assert_eq!(trace, bags(), "{name}");
    }
    assert_eq!(read(fixture("trace_tuple.pt")).expect("a tuple").batch, Some(2));
    let plain = read(fixture("ids.npy")).expect("an array");
    assert_eq!(plain, IdTrace { ids: IDS.into(), ..IdTrace::default() });
}

#[test]
fn safetensors_by_name() {
    let write = |offsets: &[i64]| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("trace.safetensors");
        let entries = [
            Entry::new("indices", Dtype::I64, &[IDS.len()]),
            Entry::new("offsets", Dtype::I64, &[offsets.len()]),
        ];
        let mut writer = Writer::create(&path, &entries, &BTreeMap::new()).expect("created");
        for number in IDS.iter().chain(offsets) {
            writer.write(&number.to_le_bytes()).expect("written");
        }
        writer.finish().expect("written");
        read(&path).map_err(|error| error.to_string())
    };
    assert_eq!(write(&OFFSETS).expect("a trace").offsets, Some(OFFSETS.into()));
    for (offsets, expected) in [
        (&[][..], "offsets are empty"),
        (&[1, 6], "offsets start at 1"),
        (&[0, 5], "offsets end at 5; there are 6 ids"),
        (&[0, 7], "offsets end at 7; there are 6 ids"),
        (&[0, 4, 3, 6], "offsets fall from 4 to 3 at position 2"),
    ] {
        let error = write(offsets).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}

fn write(metadata: &[(&str, &str)], tensors: &[(&str, Dtype, &[usize], &[u8])]) -> TempPath {
    let path = tempfile::Builder::new().suffix(".safetensors").tempfile().expect("a file");
    let path = path.into_temp_path();
    let entries: Vec<Entry> =
        tensors.iter().map(|(name, dtype, shape, _)| Entry::new(*name, *dtype, shape)).collect();
    let metadata = metadata.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let mut writer = Writer::create(&path, &entries, &metadata).expect("created");
    tensors.iter().for_each(|(.., bytes)| writer.write(bytes).expect("written"));
    writer.finish().expect("written");
    path
}

fn le<const N: usize, T: Copy>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|value| bytes(*value)).collect()
}

#[test]
fn a_file_tells_its_batch_by_metadata_by_a_tensor_or_by_a_shape() {
    let ids = le(&IDS, i64::to_le_bytes);
    let offsets = le(&OFFSETS, i64::to_le_bytes);
    let lengths = le(&[2_i64, 0, 3, 1], i64::to_le_bytes);
    let two = 2_i32.to_le_bytes();
    let indices = ("indices", Dtype::I64, &[6][..], &ids[..]);
    let offsets = ("offsets", Dtype::I64, &[5][..], &offsets[..]);
    let scalar = ("batch_size", Dtype::I32, &[][..], &two[..]);
    let square = ("lengths", Dtype::I64, &[2, 2][..], &lengths[..]);
    let flat = ("lengths", Dtype::I64, &[4][..], &lengths[..]);
    let batch = |metadata: &[(&str, &str)], tensors: &[_]| {
        read(write(metadata, tensors)).map(|t| t.batch).map_err(|error| error.to_string())
    };
    assert_eq!(batch(&[], &[indices, offsets]), Ok(None));
    assert_eq!(batch(&[], &[indices, flat]), Ok(None));
    assert_eq!(batch(&[("batch", "2")], &[indices, offsets]), Ok(Some(2)));
    assert_eq!(batch(&[], &[indices, offsets, scalar]), Ok(Some(2)));
    assert_eq!(batch(&[], &[indices, square]), Ok(Some(2)));
    for (metadata, tensors, told) in [
        (("batch", "two"), vec![indices, offsets], "`batch` is `two`; the samples per batch"),
        (("batch", "0"), vec![indices, offsets], "`batch` is 0"),
        (("batch", "4"), vec![indices, offsets, scalar], "contradict each other"),
        (("batch", "4"), vec![indices, square], "which contradicts `batch`"),
        (("batch_size", "2"), vec![indices, ("batch", Dtype::I32, &[][..], &two[..]), offsets], ""),
    ] {
        match batch(&[metadata], &tensors) {
            Err(error) => assert!(!told.is_empty() && error.contains(told), "{error}"),
            Ok(batch) => assert!(told.is_empty() && batch == Some(2), "{told}"),
        }
    }
}

#[test]
fn shapes_and_features_are_read_or_refused() {
    let ids = le(&IDS, i64::to_le_bytes);
    let dense = le(&[0.5_f32, 1.0, 1.5, 2.0], f32::to_le_bytes);
    let matrix = ("indices", Dtype::I64, &[2, 3][..], &ids[..]);
    let features = ("dense", Dtype::F32, &[2, 2][..], &dense[..]);
    let trace = read(write(&[], &[matrix, features])).expect("a trace");
    assert_eq!((trace.by_sample, trace.tables), (true, Some(3)));
    assert_eq!(trace.offsets, Some((0..=6).collect()));
    let read_dense = trace.dense.expect("features");
    assert_eq!(
        (read_dense.rows, read_dense.width, read_dense.values),
        (2, 2, vec![0.5, 1.0, 1.5, 2.0])
    );
    let deep = read(write(&[], &[("ids", Dtype::I64, &[1, 2, 3], &ids)])).expect("a trace");
    assert_eq!((deep.offsets, deep.tables), (Some(vec![0, 3, 6]), Some(2)));
    let flat = ("indices", Dtype::I64, &[6][..], &ids[..]);
    for (tensors, told) in [
        (vec![flat, ("dense", Dtype::F32, &[4][..], &dense[..])], "`dense` has shape [4]"),
        (
            vec![flat, ("dense", Dtype::Bool, &[2, 8], &dense)],
            "`dense` is bool; numbers are expected",
        ),
        (vec![flat, ("weights", Dtype::F32, &[4], &dense)], "4 weights for 6 ids"),
        (vec![matrix, ("offsets", Dtype::I64, &[6], &ids)], "one dimension is expected"),
        (vec![("indices", Dtype::I64, &[1, 1, 2, 3], &ids)], "[samples, tables, ids per bag]"),
        (vec![("indices", Dtype::I64, &[1 << 40, 1 << 20, 0], &[])], "too many empty bags"),
    ] {
        let error = read(write(&[], &tensors)).expect_err(told).to_string();
        assert!(error.contains(told), "{error}");
    }
}

fn columns() -> Columns {
    Columns { dense: 2, tables: vec!["user".into(), "item".into()] }
}

fn read_samples(name: &str, content: &str) -> Result<IdTrace, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    std::fs::write(&path, content).expect("written");
    IdTrace::read(&path, &columns()).map_err(|error| error.to_string())
}

#[test]
fn csv_and_json_lines_hold_the_same_samples() {
    let csv = "\u{feff}item,d1,note,d0,user\r\n3|4,1.5,x,0.5,7\n\"\",-1,y,2e0,8  9\n";
    let by_csv = read_samples("requests.csv", csv).expect("samples");
    assert_eq!(by_csv.ids, [7, 3, 4, 8, 9]);
    assert_eq!(by_csv.offsets, Some(vec![0, 1, 3, 5, 5]));
    assert_eq!(by_csv.dense.as_ref().expect("features").values, [0.5, 1.5, 2.0, -1.0]);
    assert!(by_csv.by_sample && by_csv.weights.is_none());
    let lines = "{\"dense\":[0.5,1.5],\"ids\":{\"item\":[3,4],\"user\":7}}\n\n\
                 {\"ids\":[[8,9],[]],\"dense\":[2,-1],\"label\":1}\n";
    let mut by_json = read_samples("requests.txt", lines).expect("samples");
    // What means nothing is told.
    assert_eq!(
        (&by_csv.ignored[..], &by_json.ignored[..]),
        (&["note".into()][..], &["label".into()][..])
    );
    let by_csv = IdTrace { ignored: Vec::new(), ..by_csv };
    by_json.ignored.clear();
    assert_eq!(by_json, by_csv);
    // Features go by their order where they have names of their own; and may be missing.
    let named = "age,user,height,item\n0.5,7,1.5,3|4\n2,8 9,-1,\n";
    assert_eq!(read_samples("named", named), Ok(by_csv.clone()));
    let tabs = named.replace(',', "\t");
    assert_eq!(read_samples("named.tsv", &tabs), Ok(by_csv));
    assert_eq!(read_samples("bare", "user,item\n1,2\n").expect("samples").dense, None);
    let weighted = "{\"ids\":[[8,9],[]],\"weights\":[[0.5,2],[]]}";
    assert_eq!(read_samples("w", weighted).expect("samples").weights, Some(vec![0.5, 2.0]));
}

#[test]
fn bad_samples_are_told_by_line_and_table() {
    let csv = |line: &str| format!("d0,d1,user,item\n1,2,3,4\n{line}\n");
    let json = |line: &str| format!("{{\"dense\":[1,2],\"ids\":[[],[]]}}\n\n{line}\n");
    for (name, text, told) in [
        ("a.csv", csv("1,2,3,x"), ":3: table `item`: `x` is not an integer id"),
        ("a.csv", csv("1,2,3 4.0,"), ":3: table `user`: `4.0` is not"),
        ("a.csv", csv("1,,3,4"), ":3: dense feature 1: `` is not a finite number"),
        ("a.csv", csv("nan,2,3,4"), ":3: dense feature 0: `nan` is not"),
        ("a.csv", csv("1,2,3"), ":3: 3 fields; the header has 4"),
        ("a.csv", "d0,d1,user\n".into(), ":1: no column is named like table `item`"),
        ("a.csv", "d0,user,item\n".into(), ":1: column `d1` is missing"),
        ("a.csv", "d0,d1,d2,user,item\n".into(), ":1: column `d2`: the model takes 2"),
        ("a.csv", "a,user,item\n".into(), ":1: 1 columns are not named like a table"),
        ("a.csv", "user,user,item\n".into(), "`user` is there twice"),
        ("a.csv", "d0,d1,user,item\n".into(), "it holds no samples"),
        ("a", json("{\"dense\":[1,2]}"), ":3: `ids` is missing"),
        ("a", json("[1]"), ":3: expected {\"dense\""),
        ("a", json("{\"dense\":[1,2]"), ":3: not a JSON object on one line"),
        ("a", json("{\"dense\":[1],\"ids\":[[],[]]}"), "`dense`: expected a list of 2 numbers"),
        ("a", json("{\"dense\":[1,\"x\"],\"ids\":[[],[]]}"), ":3: dense feature 1"),
        ("a", json("{\"dense\":[1,2],\"ids\":[[]]}"), "`ids` has 1 lists; the model has 2 tables"),
        ("a", json("{\"dense\":[1,2],\"ids\":{\"user\":[]}}"), "`ids` has no `item`"),
        ("a", json("{\"dense\":[1,2],\"ids\":{\"ad\":[]}}"), "the model has no table `ad`"),
        (
            "a",
            json("{\"dense\":[1,2],\"ids\":[[1.5],[]]}"),
            "table `user`: `1.5` is not an integer",
        ),
        ("a", json("{\"ids\":[[],[]]}"), ":3: the sample lacks `dense`"),
        ("a", "{\"ids\":[[1],[]],\"weights\":[[],[]]}".into(), "table `user`: 0 weights for 1 ids"),
    ] {
        let error = read_samples(name, &text).expect_err(told);
        assert!(error.contains(told), "{error}, not {told}");
    }
}

/// A matrix as `numpy.save` writes it.
fn npy(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(elements);
    file
}

#[test]
fn matrices_hold_features_and_one_id_per_table() {
    let read = |content: Vec<u8>| {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), content).expect("written");
        IdTrace::read(file.path(), &columns()).map_err(|error| error.to_string())
    };
    let whole = le(&[0.5, 1.5, 3.0, 4.0, 2.0, -1.0, 5.0, -1.0], f64::to_le_bytes);
    let trace = read(npy("<f8", "(2, 4)", &whole)).expect("samples");
    assert_eq!((trace.ids, trace.offsets), (vec![3, 4, 5, -1], Some(vec![0, 1, 2, 3, 4])));
    assert_eq!(trace.dense.expect("features").values, [0.5, 1.5, 2.0, -1.0]);
    let ids = le(&[1_i64, 2, 3, 4], i64::to_le_bytes);
    let trace = read(npy("<i8", "(2, 2)", &ids)).expect("samples");
    assert_eq!((trace.ids, trace.dense), (vec![1, 2, 3, 4], None));
    let large = le(&[0.0, 0.0, 16_777_216.0, 1.0], f32::to_le_bytes);
    let error = read(npy("<f4", "(1, 4)", &large)).expect_err("not exact");
    assert!(error.contains("row 0, table `user`: not an id that fp32 holds exactly"), "{error}");
    let error = read(npy("<f8", "(1, 8)", &whole)).expect_err("too wide");
    assert!(error.contains("rows of 2 dense features and 2 ids"), "{error}");
}

#[test]
fn text_with_comments_and_blank_lines() {
    assert_eq!(read_text("# ids\n\n 3 \r\n-1 # pruned\n\t7"), Ok(vec![3, -1, 7]));
}

#[test]
fn errors_name_the_place() {
    for (content, expected) in [
        ("1\n2\nx\n", ":3: `x` is not an id"),
        ("1\n2 3\n", ":2: `2 3` is not an id"),
        ("1.5\n", ":1: `1.5` is not an id"),
        ("99999999999999999999\n", ":1: `99999999999999999999` is not an id"),
        ("# nothing\n", "it holds no ids"),
        ("", "is empty"),
    ] {
        let error = read_text(content).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
    for (name, expected) in [
        ("trace_wrong.pt", "offsets and lengths contradict each other"),
        ("trace_float.pt", "`0` is fp32; 64-bit integers are expected"),
        ("nested.pt", "a tensor `indices` or a tuple"),
        ("square.npy", "an array of shape [2, 2]"),
        ("missing.txt", "No such file"),
    ] {
        let error = read(fixture(name)).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

proptest! {
    #[test]
    fn text_round_trip(ids in prop::collection::vec(any::<i64>(), 1..100)) {
        let lines: Vec<String> = ids.iter().map(i64::to_string).collect();
        prop_assert_eq!(read_text(lines.join("\n")), Ok(ids));
    }
}
