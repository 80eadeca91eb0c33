//! Checkpoints made by PyTorch (fixtures/make.py), and damaged or hostile ones.

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
    for name in ["nested.pt", "protocol4.pt", "legacy_nested.pt"] {
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
    views_are_read("views.pt");
    views_are_read("legacy_views.pt");
}

fn views_are_read(name: &str) {
    let checkpoint = open(name);
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
fn settings_beside_the_weights_are_read_as_text_or_skipped() {
    let checkpoint = open("settings.pt");
    assert_eq!(floats(&checkpoint, "state_dict.weight"), count(0, 4));
    assert_eq!(checkpoint.tensors.len(), 1);
    let said: Vec<_> = checkpoint.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let expected =
        [("args.layers.0", "64"), ("args.layers.1", "8"), ("args.lr", "0.5"), ("args.name", "run")];
    assert_eq!(said, expected);
}

#[test]
fn safetensors_in_several_files() {
    for name in ["sharded", "sharded/model.safetensors.index.json"] {
        let checkpoint = open(name);
        assert_eq!(checkpoint.tensors.len(), 3);
        assert_eq!(floats(&checkpoint, "a"), count(0, 6));
        assert_eq!(checkpoint.tensors["a"].shape, [2, 3]);
        assert_eq!(floats(&checkpoint, "c"), count(10, 5));
        assert!(checkpoint.tensors.values().all(|tensor| tensor.bytes.is_mapped()));
    }
}

#[test]
fn indices_that_name_no_shards() {
    let dir = tempfile::tempdir().expect("a directory");
    let shard = "model-00001-of-00002.safetensors";
    std::fs::copy(fixture("sharded").join(shard), dir.path().join(shard)).expect("copied");
    let path = dir.path().join("model.safetensors.index.json");
    let outside = dir.path().join("x/../model-00001-of-00002.safetensors");
    for (json, expected) in [
        ("{", "is not valid JSON"),
        ("{\"weights\": {}}", "it has no `weight_map`"),
        ("{\"weight_map\": {\"a\": 3}}", "tensor `a`: expected the name of a file"),
        ("{\"weight_map\": {\"a\": \"../x\"}}", "in the same directory"),
        (&format!("{{\"weight_map\": {{\"a\": {outside:?}}}}}"), "in the same directory"),
        ("{\"weight_map\": {\"a\": \"gone.safetensors\"}}", "gone.safetensors"),
        (
            &format!("{{\"weight_map\": {{\"z\": {shard:?}}}}}"),
            "places tensor `z` in model-00001-of-00002.safetensors, which has no such tensor",
        ),
    ] {
        std::fs::write(&path, json).expect("written");
        let error = Checkpoint::open(dir.path()).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    std::fs::write(dir.path().join("other.safetensors.index.json"), "{}").expect("written");
    let error = Checkpoint::open(dir.path()).expect_err("two").to_string();
    assert!(error.contains("or one *.safetensors.index.json"), "{error}");
}

#[test]
fn checkpoints_of_several_processes_are_put_together() {
    for name in ["distributed", "distributed/.metadata"] {
        let checkpoint = open(name);
        for (name, shape) in [
            ("rows", &[5, 3][..]),
            ("columns", &[2, 6]),
            ("cube", &[2, 3, 4]),
            ("thin", &[1, 3]),
            ("whole", &[4]),
            ("plain", &[3]),
        ] {
            let tensor = &checkpoint.tensors[&format!("model.{name}")];
            assert_eq!(tensor.shape, shape, "{name}");
            let elements = shape.iter().product::<usize>() as u32;
            assert_eq!(floats(&checkpoint, &format!("model.{name}")), count(0, elements), "{name}");
        }
        assert_eq!(floats(&checkpoint, "model.scalar"), [7.5]);
        assert!(checkpoint.tensors["model.whole"].bytes.is_mapped());
        assert!(checkpoint.order.is_none());
    }
}

/// A copy of the distributed checkpoint in which bytes of one file are replaced.
fn changed_distributed(file: &str, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    for entry in std::fs::read_dir(fixture("distributed")).expect("the fixture") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("copied");
    }
    let path = dir.path().join(file);
    let mut bytes = std::fs::read(&path).expect("read");
    change(&mut bytes);
    std::fs::write(&path, bytes).expect("written");
    Checkpoint::open(dir.path()).expect_err(file).to_string()
}

#[test]
fn damaged_checkpoints_of_several_processes() {
    let replace = |from: &'static [u8], to: &'static [u8]| {
        assert_eq!(from.len(), to.len());
        move |bytes: &mut Vec<u8>| {
            let at = bytes.windows(from.len()).position(|window| window == from).expect("there");
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    };
    let error = changed_distributed("__1_0.distcp", |bytes| bytes.truncate(100));
    assert!(error.contains("__1_0.distcp") && error.contains("was it cut off?"), "{error}");
    let error = changed_distributed(".metadata", replace(b"__0_0.distcp", b"../../passwd"));
    assert!(error.contains("outside of the directory"), "{error}");
    let error = changed_distributed(".metadata", replace(b"__0_0.distcp", b"__2_0.distcp"));
    assert!(error.contains("__2_0.distcp"), "{error}");
    let error = changed_distributed(".metadata", replace(b"storage_data", b"storage_dada"));
    assert!(error.contains("describes no tensors"), "{error}");
    let evil =
        replace(b"torch.distributed.checkpoint.metadata", b"torch_distributed.checkpoint.metadata");
    let error = changed_distributed(".metadata", evil);
    assert!(error.contains("is refused"), "{error}");
}

#[test]
fn legacy_files_that_are_cut_off_or_foreign() {
    let bytes = std::fs::read(fixture("legacy_nested.pt")).expect("the fixture");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file.pt");
    for end in (15..bytes.len()).step_by(11) {
        std::fs::write(&path, &bytes[..end]).expect("written");
        let error = Checkpoint::open(&path).expect_err("cut off").to_string();
        assert!(error.contains("cut off?") && error.contains("file.pt"), "{end}: {error}");
    }
    let at = bytes.windows(13).position(|window| window == b"little_endian").expect("there");
    let mut big = bytes.clone();
    let truth = at + bytes[at..].iter().position(|byte| *byte == 0x88).expect("true");
    big[truth] = 0x89;
    std::fs::write(&path, big).expect("written");
    let error = Checkpoint::open(&path).expect_err("big-endian").to_string();
    assert!(error.contains("save it again on a little-endian machine"), "{error}");
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    for (name, expected) in [
        ("command.pt", "`posix.system` is refused"),
        ("module.pt", "save only the weights: torch.save(model.state_dict(), \"weights.pt\")"),
        ("quantised.pt", "save `tensor.dequantize()`"),
        ("sparse.pt", "save `tensor.to_dense()`"),
        ("script.pt", "a TorchScript module: save its weights: torch.save("),
        ("big_endian.pt", "is big-endian: save it again on a little-endian machine"),
        ("packed.pt", "is compressed"),
        ("loop.pt", "refer to themselves"),
        ("doubling.pt", "more than 262144 values"),
        ("ids.npy", "is a NumPy array"),
        ("make.py", "is a text file: expected safetensors"),
        ("missing.pt", "No such file"),
        ("", "is a directory without a checkpoint"),
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
        (b"BZh91AY", "bunzip2"),
        (b"MATLAB 5.0 MAT-file, Platform: GLNXA64", "a MATLAB file"),
        (b"from,to\n0,1\n", "a text file"),
        ("nœuds\n".repeat(200).as_bytes(), "a text file"),
        (b"{\"a\": 1}", "it has no `weight_map`"),
        (b"\x93MUNPY rather", "of no known kind: expected safetensors"),
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

const FIXTURES: [&str; 11] = [
    "nested.pt",
    "settings.pt",
    "legacy_nested.pt",
    "legacy_views.pt",
    "sharded/model.safetensors.index.json",
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

/// The same for the metadata of a checkpoint in parts, beside the files that it names.
#[test]
fn flipped_metadata_never_panics() {
    let dir = tempfile::tempdir().expect("a directory");
    for file in ["__0_0.distcp", "__1_0.distcp"] {
        std::fs::copy(fixture("distributed").join(file), dir.path().join(file)).expect("copied");
    }
    let bytes = std::fs::read(fixture("distributed/.metadata")).expect("the fixture");
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff, bytes[at] ^ 1] {
            let mut changed = bytes.clone();
            changed[at] = value;
            std::fs::write(dir.path().join(".metadata"), changed).expect("written");
            if let Ok(checkpoint) = Checkpoint::open(dir.path()) {
                assert!(checkpoint.tensors.len() <= 7);
            }
        }
    }
}
