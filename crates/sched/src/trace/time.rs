//! Points in time and lengths of time, as other people's logs write them.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::read::Error;
use crate::read::table::{Field, TIME_MAX_S};

/// Forms without a zone that the ISO parser does not take: Lingjun writes `2023/7/15 02:19`.
const SLASHED: [&str; 2] = ["%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M"];

/// Whether a log leaves the value out: empty, or a word such as Slurm's `Unknown`.
pub(super) fn is_absent(text: &str) -> bool {
    ["", "none", "unknown", "null", "nan", "nat", "n/a"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word))
}

/// Seconds since 1970; none where the log leaves the time out. A time without a zone counts as UTC,
/// as only differences matter.
pub(super) fn epoch_s(field: &Field<'_>) -> Result<Option<f64>, Error> {
    if is_absent(&field.text) {
        return Ok(None);
    }
    match parse_epoch_s(&field.text) {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(field.error("a time such as 2017-10-09 07:01:55")),
    }
}

/// As [`epoch_s`], where the log must have a time.
pub(super) fn known_epoch_s(field: &Field<'_>) -> Result<f64, Error> {
    epoch_s(field)?.ok_or_else(|| field.error("a time such as 2017-10-09 07:01:55"))
}

pub(super) fn parse_epoch_s(text: &str) -> Option<f64> {
    // Seconds since 1970, as Slurm writes them with SLURM_TIME_FORMAT=%s.
    if let Ok(seconds) = text.parse::<f64>() {
        return (0.0..=TIME_MAX_S).contains(&seconds).then_some(seconds);
    }
    let zoned = text.get(10..).is_some_and(|time| time.contains(['+', '-', 'Z']));
    let timestamp = if zoned {
        text.parse::<Timestamp>().ok()?
    } else {
        let parsed = text.parse::<DateTime>().ok();
        let slashed = || SLASHED.iter().find_map(|form| DateTime::strptime(form, text).ok());
        parsed.or_else(slashed)?.to_zoned(TimeZone::UTC).ok()?.timestamp()
    };
    Some(timestamp.as_duration().as_secs_f64())
}

/// Seconds of Slurm's `[days-]hours:minutes:seconds`, `minutes:seconds`, with or without fractions.
pub(super) fn parse_elapsed_s(text: &str) -> Option<f64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u32>().ok()?, clock),
        None => (0, text),
    };
    let mut seconds = 0.0;
    let parts: Vec<&str> = clock.split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    for (at, part) in parts.iter().enumerate() {
        let is_last = at + 1 == parts.len();
        let digits = |c: char| c.is_ascii_digit() || (is_last && c == '.');
        if part.is_empty() || !part.chars().all(digits) {
            return None;
        }
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    let all_s = f64::from(days) * 86_400.0 + seconds;
    (all_s <= TIME_MAX_S).then_some(all_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_logs() {
        let day_s = 1_507_507_200.0;
        for text in [
            "2017-10-09 01:01:55",
            "2017-10-09T01:01:55",
            "2017-10-09 09:01:55+08:00",
            "2017-10-09T01:01:55Z",
            "2017/10/9 01:01:55",
            "1507510915",
        ] {
            assert_eq!(parse_epoch_s(text), Some(day_s + 3715.0), "{text}");
        }
        assert_eq!(parse_epoch_s("2017/10/09 1:01"), Some(day_s + 3660.0));
        for text in ["yesterday", "2017-13-09 01:01:55", "-5", "1e30", "2017-10-09 01:01:55+99:00"]
        {
            assert_eq!(parse_epoch_s(text), None, "{text}");
        }
    }

    #[test]
    fn lengths_of_slurm() {
        for (text, seconds) in [
            ("00:00:00", Some(0.0)),
            ("01:02:03", Some(3723.0)),
            ("02:03.500", Some(123.5)),
            ("3-00:00:01", Some(259_201.0)),
            ("100:00:00", Some(360_000.0)),
            ("5", None),
            ("1:2:3:4", None),
            ("-1:00:00", None),
            ("nan:00", None),
            ("1:-5", None),
            ("9999999999-00:00:00", None),
        ] {
            assert_eq!(parse_elapsed_s(text), seconds, "{text}");
        }
    }
}
