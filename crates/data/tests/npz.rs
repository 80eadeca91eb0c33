//! Archives of arrays: stored and packed ones, and those that lie.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};
use hither_data::{Dtype, Npz};
use proptest::prelude::*;
use tempfile::TempDir;

/// An array as numpy.save writes it.
fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    while !(header.len() + 11).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

struct Member<'a> {
    name: &'a str,
    content: Vec<u8>,
    packed: bool,
    /// What the archive says instead of the truth.
    size: Option<u32>,
    crc: Option<u32>,
}

fn member(name: &str, content: Vec<u8>, packed: bool) -> Member<'_> {
    Member { name, content, packed, size: None, crc: None }
}

/// A zip archive, written by hand so that it can be wrong.
fn zip(members: &[Member<'_>]) -> Vec<u8> {
    let (mut file, mut directory) = (vec![], vec![]);
    for Member { name, content, packed, size, crc } in members {
        let name = format!("{name}.npy");
        let data = if *packed {
            let mut encoder = DeflateEncoder::new(vec![], Compression::best());
            encoder.write_all(content).expect("packed");
            encoder.finish().expect("packed")
        } else {
            content.clone()
        };
        let mut sum = Crc::new();
        sum.update(content);
        let mut shared = vec![20, 0, 0, 0, if *packed { 8 } else { 0 }, 0, 0, 0, 0, 0];
        shared.extend(crc.unwrap_or(sum.sum()).to_le_bytes());
        shared.extend((data.len() as u32).to_le_bytes());
        shared.extend(size.unwrap_or(content.len() as u32).to_le_bytes());
        shared.extend((name.len() as u16).to_le_bytes());
        shared.extend([0, 0]);
        let start = file.len() as u32;
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&shared);
        directory.extend([0; 10]);
        directory.extend(start.to_le_bytes());
        directory.extend(name.as_bytes());
        file.extend(b"PK\x03\x04");
        file.extend(&shared);
        file.extend(name.as_bytes());
        file.extend(&data);
    }
    let start = file.len() as u32;
    file.extend(&directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend((members.len() as u16).to_le_bytes());
    file.extend((members.len() as u16).to_le_bytes());
    file.extend((directory.len() as u32).to_le_bytes());
    file.extend(start.to_le_bytes());
    file.extend([0, 0]);
    file
}

fn write(bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("some.npz");
    std::fs::write(&path, bytes).expect("written");
    (dir, path)
}

fn numbers() -> Vec<u8> {
    (0..6_i32).flat_map(i32::to_le_bytes).collect()
}

#[test]
fn stored_arrays_are_mapped_and_packed_ones_unpacked() {
    let (_dir, path) = write(&zip(&[
        member("stored", npy("<i4", "False", "(2, 3)", &numbers()), false),
        member("packed", npy("<i4", "False", "(2, 3)", &numbers()), true),
        member("turned", npy("<i4", "True", "(2, 3)", &numbers()), true),
        member("empty", npy("<f4", "False", "(0, 5)", &[]), true),
        member("format", npy("|S3", "False", "()", b"csr"), true),
        member("names", npy("|O", "False", "(1,)", b"\x80\x02N."), false),
    ]));
    let npz = Npz::open(&path).expect("an archive");
    assert_eq!(npz.path(), path);
    assert_eq!(
        npz.names().collect::<Vec<_>>(),
        ["empty", "format", "names", "packed", "stored", "turned"]
    );
    for (name, expected, mapped) in [
        ("stored", [0, 1, 2, 3, 4, 5], true),
        ("packed", [0, 1, 2, 3, 4, 5], false),
        ("turned", [0, 2, 4, 1, 3, 5], false),
    ] {
        let array = npz.array(name).expect(name);
        assert_eq!((array.dtype, &array.shape[..]), (Dtype::I32, &[2, 3][..]), "{name}");
        assert_eq!(array.as_i64().expect("integers")[..], expected, "{name}");
        assert_eq!(array.bytes.is_mapped(), mapped, "{name}");
    }
    assert_eq!(npz.array("empty").expect("an array").elements(), 0);
    assert_eq!(npz.text("format").expect("read").as_deref(), Some("csr"));
    assert_eq!(npz.text("packed").expect("read"), None);
    let error = npz.array("names").expect_err("objects").to_string();
    assert!(error.contains("array `names` cannot be read: elements of type `|O`"), "{error}");
    let error = npz.array("none").expect_err("missing").to_string();
    assert!(error.contains("array `none` is missing; there are: empty, format"), "{error}");
}

#[test]
fn archives_that_lie() {
    let honest = || member("a", npy("<i4", "False", "(2, 3)", &numbers()), true);
    let huge = npy("<i4", "False", "(1000000000, 1000)", &numbers());
    let cases = [
        (Member { size: Some(1 << 30), ..honest() }, "cannot be unpacked"),
        (Member { size: Some(150), ..honest() }, "but its file has 150 bytes"),
        (Member { crc: Some(1), ..honest() }, "its checksum is wrong"),
        (member("a", huge.clone(), true), "but its file has"),
        (member("a", huge, false), "its shape needs 4000000000000 bytes, and it has 24"),
        (member("a", npy("<i8", "False", "(99999999999999999999, 8)", &[]), true), "is not a size"),
        (
            member("a", npy("<i8", "False", "(999999999999999999, 99)", &[]), true),
            "its shape is too large",
        ),
    ];
    for (member, expected) in cases {
        let (_dir, path) = write(&zip(&[member]));
        let error = Npz::open(&path).and_then(|npz| npz.array("a")).expect_err("an error");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// 1.25 GB of zeros in 1.3 MB.
#[test]
fn bombs_are_not_unpacked() {
    let elements = 1_250_000_000_usize;
    let mut encoder = DeflateEncoder::new(vec![], Compression::fast());
    let header = npy("|u1", "False", &format!("({elements},)"), &[]);
    encoder.write_all(&header).expect("packed");
    encoder.write_all(&[0; 1 << 17]).expect("packed");
    let cut_short = encoder.finish().expect("packed");
    let mut bytes = zip(&[member("a", cut_short, false)]);
    // Stored becomes packed, of the size that the array would have.
    let size = ((elements + header.len()) as u32).to_le_bytes();
    let directory = bytes.windows(4).position(|at| at == b"PK\x01\x02").expect("a directory");
    for start in [0, directory + 2] {
        bytes[start + 8] = 8;
        bytes[start + 22..start + 26].copy_from_slice(&size);
    }
    let (_dir, path) = write(&bytes);
    let error = Npz::open(&path).and_then(|npz| npz.array("a")).expect_err("a bomb").to_string();
    assert!(error.contains("as decompression bombs do"), "{error}");
}

#[test]
fn what_is_no_archive() {
    for bytes in [&b"PK\x03\x04"[..], b"hello", &[0; 100]] {
        let (_dir, path) = write(bytes);
        let error = Npz::open(&path).expect_err("no archive").to_string();
        assert!(error.contains("is not a readable npz archive"), "{error}");
    }
    assert!(Npz::open(Path::new("/nowhere")).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn damage_is_an_error_or_another_array(
        flips in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 1..5),
        cut in prop::option::weighted(0.2, 0.0..1.0_f64),
    ) {
        let mut bytes = zip(&[
            member("stored", npy("<i4", "False", "(2, 3)", &numbers()), false),
            member("packed", npy("<i4", "True", "(2, 3)", &numbers()), true),
        ]);
        for (at, byte) in flips {
            let at = (bytes.len() as f64 * at) as usize;
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate((bytes.len() as f64 * cut) as usize);
        }
        let (_dir, path) = write(&bytes);
        if let Ok(npz) = Npz::open(&path) {
            for name in npz.names() {
                let _ = npz.array(name);
                let _ = npz.text(name);
            }
        }
    }
}
