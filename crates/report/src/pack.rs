//! Many integers in little text: columns of differences as variable-length bytes, deflated, base64.
//! The page's `unpack` in assets/js/data.js reads it back.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;

/// One packed block: a count of columns, then each column as its length and its differences.
pub fn columns(columns: &[Vec<i64>]) -> String {
    let mut bytes = Vec::new();
    varint(&mut bytes, columns.len() as u64);
    for column in columns {
        varint(&mut bytes, column.len() as u64);
        let mut previous = 0;
        for &value in column {
            varint(&mut bytes, zigzag(value.wrapping_sub(previous)));
            previous = value;
        }
    }
    deflated(&bytes)
}

/// Lines of text as one block; line breaks inside a line become blanks.
pub fn lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for (i, line) in lines.enumerate() {
        if i > 0 {
            text.push('\n');
        }
        text.extend(line.chars().map(|c| if c == '\n' { ' ' } else { c }));
    }
    deflated(text.as_bytes())
}

fn deflated(bytes: &[u8]) -> String {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(bytes).expect("writing to memory cannot fail");
    STANDARD.encode(encoder.finish().expect("writing to memory cannot fail"))
}

/// Small magnitudes of either sign become small numbers.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn inflated(text: &str) -> Vec<u8> {
        let bytes = STANDARD.decode(text).unwrap();
        let mut out = Vec::new();
        flate2::read::ZlibDecoder::new(&bytes[..]).read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn columns_are_differences_in_zigzag_varints() {
        let packed = columns(&[vec![5, 4, 300], vec![]]);
        // 5 → 10, −1 → 1, +296 → 592 = 0xd0 0x04.
        assert_eq!(inflated(&packed), [2, 3, 10, 1, 0xd0, 0x04, 0]);
    }

    #[test]
    fn text_survives_but_for_line_breaks() {
        assert_eq!(inflated(&lines(["a\nb", "ü"].into_iter())), "a b\nü".as_bytes());
    }
}
