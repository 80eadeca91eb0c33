//! Slurm's host lists: `gpu[001-004,007],login1`.

use super::MACHINES_MAX;

/// More brackets than this in one name multiply out to nothing a cluster has.
const BRACKETS_MAX: usize = 4;

/// The names that a host list stands for, in its order; the error says what is wrong with it.
pub fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = item_end(rest)?;
        expand_item(&rest[..end], &mut names)?;
        rest = rest[end..].strip_prefix(',').unwrap_or(&rest[end..]);
    }
    if names.is_empty() { Err("a host list such as gpu[01-08]".into()) } else { Ok(names) }
}

/// Where the first item ends: at a comma outside of brackets, or with the text.
fn item_end(text: &str) -> Result<usize, String> {
    let mut inside = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' if inside => return Err("no bracket inside of brackets".into()),
            b'[' => inside = true,
            b']' if !inside => return Err("an opening bracket before a closing one".into()),
            b']' => inside = false,
            b',' if !inside => return Ok(at),
            _ => {}
        }
    }
    if inside { Err("a closing bracket".into()) } else { Ok(text.len()) }
}

fn expand_item(item: &str, names: &mut Vec<String>) -> Result<(), String> {
    let item = item.trim();
    if item.is_empty() {
        return Err("a name between commas".into());
    }
    let mut partial = vec![String::new()];
    let mut rest = item;
    let mut brackets = 0;
    while let Some((before, after)) = rest.split_once('[') {
        brackets += 1;
        let (ranges, after) = after.split_once(']').ok_or("a closing bracket")?;
        let numbers = ranges.split(',').map(range).collect::<Result<Vec<_>, _>>()?;
        let count: u64 = numbers.iter().map(|(first, last, _)| last - first + 1).sum();
        let total = count.saturating_mul(partial.len() as u64);
        if brackets > BRACKETS_MAX || total.saturating_add(names.len() as u64) > MACHINES_MAX {
            return Err(format!("a host list of at most {MACHINES_MAX} names"));
        }
        let mut longer = Vec::with_capacity(total as usize);
        for prefix in &partial {
            for &(first, last, width) in &numbers {
                longer.extend((first..=last).map(|n| format!("{prefix}{before}{n:0width$}")));
            }
        }
        partial = longer;
        rest = after;
    }
    names.extend(partial.into_iter().map(|prefix| prefix + rest));
    if names.len() as u64 > MACHINES_MAX {
        return Err(format!("a host list of at most {MACHINES_MAX} names"));
    }
    Ok(())
}

/// `08-12` or `7`: first, last, and the width to which numbers are padded.
fn range(text: &str) -> Result<(u64, u64, usize), String> {
    let wrong = || format!("a number or a range such as 01-08 in brackets, not {text:.40?}");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |digits: &str| {
        // 15 digits: the difference of two such numbers cannot overflow.
        (digits.len() <= 15 && digits.bytes().all(|b| b.is_ascii_digit()))
            .then(|| digits.parse::<u64>().ok())
            .flatten()
            .ok_or_else(wrong)
    };
    let (first_number, last_number) = (number(first.trim())?, number(last.trim())?);
    if last_number < first_number {
        return Err(format!("a range that goes upward, not {text:.40?}"));
    }
    if last_number - first_number >= MACHINES_MAX {
        let names = last_number - first_number + 1;
        return Err(format!("at most {MACHINES_MAX} names: the range {text:.40?} has {names}"));
    }
    Ok((first_number, last_number, first.trim().len()))
}

/// Names in Slurm's short form, sorted: `gpu[01-04],login1`.
pub fn hostlist<S: AsRef<str>>(names: &[S]) -> String {
    let mut parts: Vec<Numbered> = names.iter().map(|n| Numbered::new(n.as_ref())).collect();
    parts.sort_by(|a, b| {
        (a.prefix, a.suffix, a.number, a.digits).cmp(&(b.prefix, b.suffix, b.number, b.digits))
    });
    parts.dedup();
    compact(&parts)
}

/// The short form in the given order, so that expanding it gives the names back in that order.
pub(super) fn hostlist_in_order<S: AsRef<str>>(names: &[S]) -> String {
    compact(&names.iter().map(|n| Numbered::new(n.as_ref())).collect::<Vec<_>>())
}

/// A name split around its last run of digits.
#[derive(PartialEq)]
struct Numbered<'a> {
    prefix: &'a str,
    /// As written; empty where the name has no number that fits a range.
    digits: &'a str,
    number: u64,
    suffix: &'a str,
}

impl<'a> Numbered<'a> {
    fn new(name: &'a str) -> Self {
        let digit = |c: char| c.is_ascii_digit();
        let end = name.rfind(digit).map_or(0, |at| at + 1);
        let start = name[..end].trim_end_matches(digit).len();
        // Longer numbers are part of the name: they are hashes, not counters.
        let start = if end - start > 15 { end } else { start };
        if start == end {
            return Self { prefix: name, digits: "", number: 0, suffix: "" };
        }
        Self {
            prefix: &name[..start],
            digits: &name[start..end],
            number: name[start..end].parse().unwrap_or(0),
            suffix: &name[end..],
        }
    }

    /// Whether `next` can stand in the same brackets.
    fn is_sibling(&self, next: &Self) -> bool {
        !self.digits.is_empty()
            && !next.digits.is_empty()
            && self.prefix == next.prefix
            && self.suffix == next.suffix
    }

    /// Whether a range may run on from `self` to `next`, given the digits that it began with.
    fn is_followed_by(&self, next: &Self, began: &str) -> bool {
        self.number + 1 == next.number
            && next.digits == format!("{:0width$}", next.number, width = began.len())
    }
}

fn compact(parts: &[Numbered<'_>]) -> String {
    let mut items: Vec<String> = Vec::new();
    let mut rest = parts;
    while let Some(first) = rest.first() {
        let group = 1 + rest.windows(2).take_while(|pair| pair[0].is_sibling(&pair[1])).count();
        let (group, after) = rest.split_at(group);
        rest = after;
        let mut ranges: Vec<String> = Vec::new();
        let mut left = group;
        while let Some(began) = left.first() {
            let run = 1 + left
                .windows(2)
                .take_while(|pair| pair[0].is_followed_by(&pair[1], began.digits))
                .count();
            ranges.push(if run == 1 {
                began.digits.to_string()
            } else {
                format!("{}-{}", began.digits, left[run - 1].digits)
            });
            left = &left[run..];
        }
        let numbers = ranges.join(",");
        let numbers = if group.len() == 1 { numbers } else { format!("[{numbers}]") };
        items.push(format!("{}{numbers}{}", first.prefix, first.suffix));
    }
    items.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_expand_and_fold() {
        let names = expand("gpu[08-11,20],login1,r[1-2]n[1-2]").unwrap();
        assert_eq!(names[..3], ["gpu08", "gpu09", "gpu10"]);
        assert_eq!(names[5..], ["login1", "r1n1", "r1n2", "r2n1", "r2n2"]);
        assert_eq!(hostlist(&names), "gpu[08-11,20],login1,r1n[1-2],r2n[1-2]");
        assert_eq!(hostlist(&["gpu10", "gpu9", "gpu8", "gpu8"]), "gpu[8-10]");
        assert_eq!(hostlist(&["a", "b01x", "b02x"]), "a,b[01-02]x");
        assert_eq!(hostlist_in_order(&["n3", "n1", "n2"]), "n[3,1-2]");
        assert_eq!(hostlist::<&str>(&[]), "");
    }

    #[test]
    fn absurd_lists_are_refused_before_they_grow() {
        for text in [
            "",
            ",",
            "a,,b",
            "a[",
            "a]",
            "a[1",
            "a[2-1]",
            "a[x]",
            "a[]",
            "a[1-]",
            "a[[1]]",
            "a[1-99999999]",
            "a[0-999][0-999][0-9]",
            "a[-1]",
            "a[1-999999999999999999]",
            "a[0][0][0][0][0]",
        ] {
            assert!(expand(text).is_err(), "{text}");
        }
    }
}
