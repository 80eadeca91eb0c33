//! Checks a zip archive before a library reads it: the library makes room for as many files as the
//! archive claims to have.

/// Upper bound on the files of an archive; checkpoints have a few per tensor.
const FILES_MAX: u64 = 1 << 20;
/// The least bytes that the directory of an archive takes per file.
const ENTRY_BYTES: u64 = 46;
const END: &[u8] = b"PK\x05\x06";
const END_LEN: usize = 22;
const COMMENT_MAX: usize = 0xffff;
const LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_LEN: usize = 20;
const END64: &[u8] = b"PK\x06\x06";

/// Describes what is wrong with the numbers of files in an archive, if anything is. Every place
/// that could be taken for its end is looked at.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    let first = bytes.len().saturating_sub(END_LEN + COMMENT_MAX);
    for at in first..bytes.len().saturating_sub(END_LEN - 1) {
        let end = &bytes[at..];
        if !end.starts_with(END) {
            continue;
        }
        fits(bytes, u16::from_le_bytes([end[10], end[11]]).into())?;
        let locator = at.checked_sub(LOCATOR_LEN).map(|at| &bytes[at..]);
        let Some(locator) = locator.filter(|locator| locator.starts_with(LOCATOR)) else {
            continue;
        };
        let start = number(locator, 8).and_then(|at| usize::try_from(at).ok());
        let end64 = start.and_then(|at| bytes.get(at..)).filter(|end| end.starts_with(END64));
        if let Some(files) = end64.and_then(|end| number(end, 32)) {
            fits(bytes, files)?;
        }
    }
    Ok(())
}

fn fits(bytes: &[u8], files: u64) -> Result<(), String> {
    if files > FILES_MAX || files.saturating_mul(ENTRY_BYTES) > bytes.len() as u64 {
        return Err(format!("its zip archive claims to have {files} files; is it damaged?"));
    }
    Ok(())
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
