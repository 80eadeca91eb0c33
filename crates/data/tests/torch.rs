//! Checkpoints made by PyTorch (fixtures/make.py), and such as nobody should make.

use std::path::{Path, PathBuf};

use hither_data::{Checkpoint, Dtype};
use proptest::prelude::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(fixture(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn floats(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensors.get(name).unwrap_or_else(|| panic!("{name} is missing"));
    tensor.as_f32().expect("floats").into_owned()
}

fn count(from: u32, len: u32) -> Vec<f32> {
    (from..from + len).map(|n| n as f32).collect()
}

#[test]
fn nested_dictionaries_become_names_with_dots() {
    for name in ["nested.pt", "protocol4.pt"] {
        let checkpoint = open(name);
        assert_eq!(floats(&checkpoint, "state_dict.emb_l.0.weight"), count(0, 8));
        assert_eq!(floats(&checkpoint, "state_dict.emb_l.1.weight"), count(100, 6));
        assert_eq!(checkpoint.tensors["state_dict.emb_l.1.weight"].shape, [3, 2]);
        assert_eq!(floats(&checkpoint, "state_dict.bot_l.0.weight"), count(200, 6));
        assert_eq!(floats(&checkpoint, "state_dict.bot_l.0.bias"), count(300, 2));
        assert_eq!(floats(&checkpoint, "parameter"), count(0, 2));
        assert_eq!(floats(&checkpoint, "opt_state_dict.state.0.sum"), count(0, 2));
        assert_eq!(checkpoint.tensors.len(), 6);
        let said = |name: &str| checkpoint.metadata.get(name).map(String::as_str);
        for (name, value) in [
            ("epoch", "3"),
            ("train_loss", "0.125"),
            ("test_acc", "0.75"),
            ("iter", "1099511627776"),
            ("big", "-1099511627776"),
            ("name", "nested"),
            ("shape", "[4, 2]"),
            ("device", "cpu"),
            ("opt_state_dict.param_groups.0.lr", "0.5"),
            ("opt_state_dict.param_groups.0.params.0", "0"),
        ] {
            assert_eq!(said(name), Some(value), "{name}");
        }
        assert!(checkpoint.tensors.values().all(|tensor| tensor.bytes.is_mapped()));
    }
}

#[test]
fn every_type_of_element() {
    let checkpoint = open("dtypes.pt");
    let expected: Vec<f32> = (0..6).map(|n| n as f32 - 1.0).collect();
    for (name, dtype) in [
        ("float32", Dtype::F32),
        ("float16", Dtype::F16),
        ("bfloat16", Dtype::Bf16),
        ("float64", Dtype::F64),
    ] {
        assert_eq!(checkpoint.tensors[name].dtype, dtype);
        assert_eq!(floats(&checkpoint, name), expected);
        assert!(checkpoint.tensors[name].as_i64().is_none());
    }
    for (name, dtype, first) in [
        ("int64", Dtype::I64, -1),
        ("int32", Dtype::I32, -1),
        ("int16", Dtype::I16, -1),
        ("int8", Dtype::I8, -1),
        ("uint8", Dtype::U8, 0),
    ] {
        assert_eq!(checkpoint.tensors[name].dtype, dtype);
        let integers = checkpoint.tensors[name].as_i64().expect("integers");
        assert_eq!(*integers, (first..first + 6).collect::<Vec<i64>>()[..]);
        assert!(checkpoint.tensors[name].as_f32().is_none());
    }
    assert_eq!(*checkpoint.tensors["bool"].bytes, [1, 0]);
    assert_eq!(checkpoint.tensors["empty"].shape, [0, 5]);
    assert_eq!(floats(&checkpoint, "scalar"), [7.5]);
    assert!(checkpoint.tensors["scalar"].shape.is_empty());
}

#[test]
fn views_share_their_storage_or_are_laid_out_anew() {
    let checkpoint = open("views.pt");
    let base = &checkpoint.tensors["base"];
    let rows = &checkpoint.tensors["rows"];
    assert_eq!(rows.bytes.as_ptr().addr(), base.bytes.as_ptr().addr() + 6 * 4);
    assert_eq!(floats(&checkpoint, "rows"), count(6, 12));
    assert_eq!(floats(&checkpoint, "one_row"), count(12, 6));
    assert!(checkpoint.tensors["one_row"].bytes.is_mapped());

    let transposed = &checkpoint.tensors["transposed"];
    assert_eq!((&transposed.shape[..], transposed.bytes.is_mapped()), (&[6, 4][..], false));
    let expected: Vec<f32> =
        (0..6).flat_map(|column| (0..4).map(move |row| (row * 6 + column) as f32)).collect();
    assert_eq!(floats(&checkpoint, "transposed"), expected);
    assert_eq!(floats(&checkpoint, "column"), [2.0, 8.0, 14.0, 20.0]);
    assert_eq!(floats(&checkpoint, "stepped"), [1.0, 3.0, 5.0, 13.0, 15.0, 17.0]);
    let expanded = [[0.0; 4], [1.0; 4], [2.0; 4]].concat();
    assert_eq!(floats(&checkpoint, "expanded"), expanded);
    let cube: Vec<f32> = (0..4)
        .flat_map(|k| (0..2).flat_map(move |i| (0..3).map(move |j| (i * 12 + j * 4 + k) as f32)))
        .collect();
    assert_eq!(floats(&checkpoint, "cube"), cube);
}

#[test]
fn a_lone_tensor_and_a_tuple_are_named_by_position() {
    assert_eq!(floats(&open("tensor.pt"), "0"), count(0, 4));
    let names: Vec<_> = open("trace_tuple.pt").tensors.into_keys().collect();
    assert_eq!(names, ["0", "1", "2"]);
}

#[test]
fn the_order_of_saving_is_kept() {
    let order = open("views.pt").order.expect("kept");
    assert_eq!(order[..4], ["base", "rows", "transposed", "column"]);
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    for (name, expected) in [
        ("command.pt", "`posix.system` is refused"),
        ("module.pt", "save `model.state_dict()` instead of the whole model"),
        ("quantised.pt", "save `tensor.dequantize()`"),
        ("sparse.pt", "save `tensor.to_dense()`"),
        ("legacy.pt", "save it again with torch.save of PyTorch 1.6 or later"),
        ("script.pt", "a TorchScript module: save its state_dict()"),
        ("big_endian.pt", "is big-endian: save it again on a little-endian machine"),
        ("packed.pt", "is compressed"),
        ("loop.pt", "refer to themselves"),
        ("doubling.pt", "more than 262144 values"),
        ("ids.npy", "is a NumPy array"),
        ("make.py", "does not begin with the length of a header"),
        ("missing.pt", "No such file"),
        ("", "is a directory"),
    ] {
        let error = Checkpoint::open(fixture(name)).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
        assert!(error.contains("fixtures"), "{name} is not named: {error}");
    }
    assert!(!Path::new("ran-from-a-pickle").exists());
}

#[test]
fn files_of_other_kinds_are_told_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut tar = vec![0; 1024];
    tar[257..262].copy_from_slice(b"ustar");
    for (content, expected) in [
        (&b""[..], "is empty"),
        (b"PK\x03\x04", "was it cut off?"),
        (b"PK\x05\x06", "was it cut off?"),
        (b"\x80\x02}.", "a bare pickle"),
        (b"\x1f\x8b\x08", "compressed with gzip"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (&tar, "tar archive"),
        (b"1234567", "cannot hold even the length"),
        (b"\x05\0\0\0\0\0\0\0{}", "was it cut off?"),
        (b"\x02\0\0\0\0\0\0\0{}1", "promises 0 bytes"),
        (b"\x02\0\0\0\0\0\0\0{]", "its header is wrong"),
    ] {
        let path = dir.path().join("file");
        std::fs::write(&path, content).expect("written");
        let error = Checkpoint::open(&path).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn devices_are_no_files() {
    let error = Checkpoint::open("/dev/null").expect_err("a device").to_string();
    assert!(error.contains("only files on disk can be mapped"), "{error}");
}

/// Opens bytes as a file, and walks over all that is found.
fn open_bytes(bytes: &[u8]) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("written");
    if let Ok(checkpoint) = Checkpoint::open(file.path()) {
        for tensor in checkpoint.tensors.values() {
            let _ = (tensor.as_f32(), tensor.as_i64());
        }
    }
    let _ = hither_data::IdTrace::read(file.path(), &hither_data::Columns::default());
}

const FIXTURES: [&str; 7] = [
    "nested.pt",
    "protocol4.pt",
    "views.pt",
    "dtypes.pt",
    "trace_tuple.pt",
    "command.pt",
    "ids.npy",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn flipped_and_cut_files_never_panic(
        fixture_index in 0..FIXTURES.len(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        end in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = std::fs::read(fixture(FIXTURES[fixture_index])).expect("the fixture");
        for (index, value) in flips {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(end) = end {
            let end = end.index(bytes.len());
            bytes.truncate(end);
        }
        open_bytes(&bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0..4) {
        let magic = [&b""[..], b"PK\x03\x04", b"\x93NUMPY\x01\0", b"\x20\0\0\0\0\0\0\0{"][kind as usize];
        bytes.splice(0..0, magic.iter().copied());
        open_bytes(&bytes);
    }
}
