//! Which options of a policy are worth searching, and which values: what `hither tune` tries. The values
//! are those of public code and of the papers, with some around them.

use super::Entry;

/// An option and values to try, as TOML.
pub type Searched = (&'static str, &'static [&'static str]);

const PLACINGS: &[&str] = &["skew", "close", "strict", "by-profile"];

const SEARCH: &[Searched] = &[
    // What changes most comes first: a small budget ends before the rest.
    ("dally.damping", &["2", "1", "1.5", "4"]),
    ("dally.quantum_s", &["600", "1800", "3600"]),
    ("dally.round_s", &["300", "600", "1200"]),
    // Quantiles: the median, where the authors' pair falls in Philly, and wider queues. Thresholds: the
    // authors', Pollux' and those of longer jobs.
    ("tiresias.quantiles", &["[0.5, 0.85]", "[0.5]", "[0.73, 0.85]", "[0.8, 0.95]"]),
    ("tiresias.thresholds", &["[]", "[3250, 7200]", "[57600]", "[1e5, 1e6]"]),
    ("tiresias.placing", PLACINGS),
    ("tiresias.promote_knob", &["inf", "8"]),
    ("gandiva.slice_s", &["60", "300", "1200"]),
    ("gandiva.rebalance_s", &["600", "60", "3600"]),
    ("gandiva.racks", &["false", "true"]),
    ("themis.lease_s", &["1200", "300", "3600"]),
    ("themis.sensitive", &["true", "false"]),
    ("themis.placing", PLACINGS),
    ("las.lease_s", &["300", "900", "3600"]),
    ("las.placing", PLACINGS),
    ("srtf.placing", PLACINGS),
];

impl Entry {
    /// The options that are worth searching for this policy; empty if it has none.
    pub fn searched(&self) -> Vec<Searched> {
        let fixed = self.preset.as_ref().map_or(&[][..], |preset| preset.options);
        let is_own = |option: &str| option.split('.').next() == Some(self.table);
        let free = |(option, _): &&Searched| is_own(option) && !fixed.contains(option);
        SEARCH.iter().filter(free).copied().collect()
    }
}
