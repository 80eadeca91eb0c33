//! Files that are made to harm, and files that change under the reader.

use std::fs::File;
use std::hint::black_box;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::process::Command;

use hither_data::pickle::{Pickle, Problem};
use hither_data::{Bytes, Checkpoint, Error, Npz};

/// The variable that makes a test process the one that dies.
const VICTIM: &str = "HITHER_TEST_TORN_FILE";

/// Half of a mapped file is cut off, and the half that is gone is read.
#[test]
fn a_file_that_is_cut_off_while_mapped_is_named() {
    if let Some(path) = std::env::var_os(VICTIM) {
        let bytes = Bytes::map(path.as_ref()).expect("mapped");
        let file = File::options().write(true).open(&path).expect("opened");
        file.set_len(4096).expect("cut off");
        black_box(bytes[bytes.len() - 1]);
        unreachable!("the page is gone");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, vec![1u8; 1 << 16]).expect("written");
    // Another mapping before and after it: the right one is named.
    let other = dir.path().join("other");
    std::fs::write(&other, vec![1u8; 1 << 16]).expect("written");
    let _other = Bytes::map(&other).expect("mapped");
    let done = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "hostile::a_file_that_is_cut_off_while_mapped_is_named", "--nocapture"])
        .env(VICTIM, &path)
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("model.safetensors was cut off"), "{said}");
}

/// A sparse file whose end claims millions of files, as both ends of an archive can.
#[test]
fn an_archive_that_claims_too_many_files_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("forged.npz");
    let claimed: u64 = 3 << 20;
    let hole: u64 = 300 << 20;
    let mut file = File::create(&path).expect("made");
    file.write_all(b"PK\x03\x04").expect("written");
    file.seek(SeekFrom::Start(hole)).expect("sought");
    let mut end = Vec::new();
    end.extend(b"PK\x06\x06");
    end.extend(44u64.to_le_bytes());
    end.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for number in [claimed, claimed, claimed * 46, hole - claimed * 46] {
        end.extend(number.to_le_bytes());
    }
    end.extend(b"PK\x06\x07\0\0\0\0");
    end.extend(hole.to_le_bytes());
    end.extend(1u32.to_le_bytes());
    end.extend(b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0");
    file.write_all(&end).expect("written");
    let claims = |problem: &str| problem.contains(&format!("{claimed} files"));
    assert!(matches!(Npz::open(&path), Err(Error::Npz { problem, .. }) if claims(&problem)));
    assert!(
        matches!(Checkpoint::open(&path), Err(Error::Archive { problem, .. }) if claims(&problem))
    );
}

/// A byte of a pickle becomes a value of forty, in lists that are filled again and again.
#[test]
fn values_inside_of_lists_are_counted() {
    let mut bytes = b"\x80\x02]".to_vec();
    for _ in 0..9 {
        bytes.push(b'(');
        bytes.extend(vec![b'N'; 1 << 19]);
        bytes.push(b'e');
    }
    bytes.push(b'.');
    let error = Pickle::read(&bytes, |_, _| Ok(())).expect_err("too many values");
    assert!(matches!(error.problem, Problem::TooMany(_)), "{error}");
}

#[test]
fn a_header_with_too_many_tensors_is_refused_before_it_is_parsed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("many.safetensors");
    let header = vec![b'{'; (1 << 20) + 1];
    let mut file = File::create(&path).expect("made");
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("written");
    file.write_all(&header).expect("written");
    let error = Checkpoint::open(&path).expect_err("too many");
    assert!(error.to_string().contains("more than 1048576 tensors"), "{error}");
}
