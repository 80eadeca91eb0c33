//! What we write, others read, and so do we.

use std::collections::BTreeMap;
use std::path::Path;

use hither_data::safetensors::{ALIGNMENT, Entry, Writer};
use hither_data::{Checkpoint, Dtype, Error};
use proptest::prelude::*;
use safetensors::SafeTensors;

fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([("made by".into(), "a \"test\"\n".into())])
}

fn write(path: &Path, entries: &[Entry], content: &[Vec<u8>], block: usize) -> Result<(), Error> {
    let mut writer = Writer::create(path, entries, &metadata())?;
    // In blocks that know nothing of where tensors end.
    for bytes in content.concat().chunks(block) {
        writer.write(bytes)?;
    }
    writer.finish()
}

fn names_in(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).expect("the directory");
    names.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn round_trip(
        shapes in prop::collection::vec(
            (prop::sample::select(Dtype::ALL.to_vec()), prop::collection::vec(0..9_usize, 0..4)),
            0..8,
        ),
        block in 1..300_usize,
        seed in any::<u8>(),
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file.safetensors");
        let entries: Vec<Entry> = shapes
            .iter()
            .enumerate()
            .map(|(i, (dtype, shape))| Entry::new(format!("t.{i} \"é\""), *dtype, shape))
            .collect();
        let content: Vec<Vec<u8>> = entries
            .iter()
            .map(|entry| {
                let bytes = entry.shape.iter().product::<usize>() * entry.dtype.bytes();
                (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
            })
            .collect();
        write(&path, &entries, &content, block).expect("written");

        let file = std::fs::read(&path).expect("the file");
        let theirs = SafeTensors::deserialize(&file).expect("valid");
        let ours = Checkpoint::open(&path).expect("valid");
        prop_assert_eq!(ours.tensors.len(), entries.len());
        prop_assert_eq!(&ours.metadata, &metadata());
        for (entry, bytes) in entries.iter().zip(&content) {
            let tensor = &ours.tensors[&entry.name];
            prop_assert_eq!(&tensor.shape, &entry.shape);
            prop_assert_eq!(tensor.dtype, entry.dtype);
            prop_assert_eq!(&*tensor.bytes, &bytes[..]);
            prop_assert_eq!(tensor.bytes.as_ptr().addr() % ALIGNMENT, 0);
            let view = theirs.tensor(&entry.name).expect("there");
            prop_assert_eq!((view.shape(), view.data()), (&entry.shape[..], &bytes[..]));
        }
        prop_assert_eq!(names_in(dir.path()), ["file.safetensors"]);
    }
}

#[test]
fn a_file_is_there_whole_or_not_at_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file.safetensors");
    let entries = [Entry::new("a", Dtype::U8, &[3]), Entry::new("b", Dtype::F32, &[2])];

    let mut short = Writer::create(&path, &entries, &metadata()).expect("created");
    short.write(&[0; 10]).expect("room");
    let error = short.finish().expect_err("a byte is missing").to_string();
    assert!(error.contains("11 bytes of tensors were promised and 10 came"), "{error}");

    let mut long = Writer::create(&path, &entries, &metadata()).expect("created");
    let error = long.write(&[0; 12]).expect_err("a byte too many").to_string();
    assert!(error.contains("promised and 12 came"), "{error}");
    drop(long);

    drop(Writer::create(&path, &entries, &metadata()).expect("created"));
    assert!(names_in(dir.path()).is_empty());

    write(&path, &entries, &[vec![1; 11]], 64).expect("written");
    drop(Writer::create(&path, &entries, &metadata()).expect("created"));
    assert_eq!(&*Checkpoint::open(&path).expect("untouched").tensors["a"].bytes, [1; 3]);
}

#[test]
fn names_and_shapes_that_make_no_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file.safetensors");
    let entry = |name: &str, shape: &[usize]| Entry::new(name, Dtype::F32, shape);
    for (entries, expected) in [
        (vec![entry("a", &[1]), entry("a", &[1])], "`a` is taken"),
        (vec![entry("_pad.0", &[1])], "`_pad.0` is taken"),
        (vec![entry("__metadata__", &[1])], "is taken"),
        (vec![entry("a", &[usize::MAX, 2])], "`a` is too large"),
        (vec![entry("a", &[usize::MAX / 4])], "`a` is too large"),
    ] {
        let error = Writer::create(&path, &entries, &metadata()).err().expect(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let nowhere = dir.path().join("missing/file");
    let error = Writer::create(&nowhere, &[], &metadata()).err().expect("no place").to_string();
    assert!(error.contains("cannot write") && error.contains("missing/file"), "{error}");
    assert!(names_in(dir.path()).is_empty());
}

/// A header that promises what a file cannot hold, in sums that pass the end of the address space.
#[test]
fn hostile_headers() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file.safetensors");
    let step = 1_u64 << 60;
    let huge: Vec<String> = (0..16_u64)
        .map(|i| {
            let (start, end) =
                (i * step, (i + 1).wrapping_mul(step).wrapping_sub(u64::from(i == 15)));
            let len = end.wrapping_sub(start);
            format!(r#""t{i:02}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    for header in [
        format!("{{{}}}", huge.join(",")),
        r#"{"t":{"dtype":"F8_E4M3","shape":[0],"data_offsets":[0,0]}}"#.into(),
        r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,3]}}"#.into(),
        r#"{"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#.into(),
        r#"{"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#.into(),
    ] {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        std::fs::write(&path, &bytes).expect("written");
        Checkpoint::open(&path).expect_err(&header);
    }
}
