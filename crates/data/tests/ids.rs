//! Traces of ids from every kind of file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hither_data::safetensors::{Entry, Writer};
use hither_data::{Dtype, IdTrace};
use proptest::prelude::*;

const IDS: [i64; 6] = [5, 1, 1, 0, 9, 3];
const OFFSETS: [i64; 5] = [0, 2, 2, 5, 6];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn read_text(content: impl AsRef<[u8]>) -> Result<Vec<i64>, String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), content).expect("written");
    IdTrace::read(file.path()).map(|trace| trace.ids).map_err(|error| error.to_string())
}

#[test]
fn tuples_and_dictionaries_of_tensors() {
    for name in ["trace_tuple.pt", "trace_dict.pt"] {
        let trace = IdTrace::read(fixture(name)).expect(name);
        assert_eq!(trace, IdTrace { ids: IDS.into(), offsets: Some(OFFSETS.into()) }, "{name}");
    }
    let plain = IdTrace::read(fixture("ids.npy")).expect("an array");
    assert_eq!(plain, IdTrace { ids: IDS.into(), offsets: None });
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
        IdTrace::read(&path).map_err(|error| error.to_string())
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

#[test]
fn text_with_comments_and_blank_lines() {
    assert_eq!(read_text("# ids\n\n 3 \r\n-1 # pruned\n\t7"), Ok(vec![3, -1, 7]));
}

#[test]
fn errors_name_the_place() {
    for (content, expected) in [
        ("1\n2\nx\n", ":3: `x` is no id"),
        ("1\n2 3\n", ":2: `2 3` is no id"),
        ("1.5\n", ":1: `1.5` is no id"),
        ("99999999999999999999\n", ":1: `99999999999999999999` is no id"),
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
        ("square.npy", "ids of shape [2, 2]"),
        ("missing.txt", "No such file"),
    ] {
        let error = IdTrace::read(fixture(name)).expect_err(expected).to_string();
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
