//! The policies, one file each. To add one: write its file, and add its line to [`TABLE`].

use hither_core::Seconds;
use serde_json::Value;

use crate::cluster::Placement;
use crate::event::Why;
use crate::job::JobId;
use crate::pass::{Answer, Offer};
use crate::state::{Claim, State, Turn};
use dally::Dally;
use gandiva::Gandiva;
use shortest::Shortest;
use tiresias::Tiresias;

pub mod dally;
mod fair_share;
mod fifo;
mod first_fit;
mod gandiva;
mod leases;
mod placing;
mod replan;
mod search;
mod settings;
mod shortest;
mod tiresias;

pub use placing::Placing;
pub use search::Searched;
pub use settings::Settings;

/// Chooses who runs where. The books keep the line and all that happens to jobs ([`crate::decide::Scheduler`]); a
/// policy says where a job stands in line, whether it takes what it is offered, whom it displaces, and what
/// happens to those who run. It cannot lose a job.
pub trait Policy: Send {
    /// Where the job stands among those that wait. Asked when it joins the line.
    fn claim(&self, _state: &State, _id: JobId) -> Claim {
        Claim::default()
    }

    /// What a waiting job says to the best that is free for it.
    fn answer(&mut self, turn: &mut Turn, id: JobId, offer: Offer) -> Answer {
        Answer::Take(best_place(turn, id, offer), Why::Turn { tier: offer.tier })
    }

    /// Whom a job that found no place, or declined it, displaces now. Asked only if [`Policy::may_stop`]; then it
    /// and all after it are offered what they leave.
    fn victims(&mut self, _turn: &mut Turn, _id: JobId) -> Vec<JobId> {
        Vec::new()
    }

    /// After each pass over the line: moves, time slices, preemption at rounds, and claims that changed. Returns
    /// whether the line is to be passed over once more.
    fn round(&mut self, _turn: &mut Turn) -> bool {
        false
    }

    /// What the policy has learned, beyond what the books know. Its options are not part of that: they come
    /// from the configuration.
    fn learned(&self) -> Value {
        Value::Null
    }

    /// Takes what `learned` gave.
    fn learn(&mut self, _learned: Value) -> Result<(), serde_json::Error> {
        Ok(())
    }

    // ---- what it promises ----

    /// Whether waiting jobs may displace others in a pass.
    fn may_stop(&self) -> bool {
        false
    }

    /// Whether the policy cannot do without true lengths. No real cluster can tell it those: such a
    /// policy is a bound to compare with.
    fn is_clairvoyant(&self) -> bool {
        false
    }

    /// How long a job may wait until no younger one overtakes it; `None`: there is no bound.
    fn overtaking_s_max(&self, _state: &State) -> Option<Seconds> {
        None
    }
}

/// The best place for the job within what is on offer.
pub fn best_place(turn: &Turn, id: JobId, Offer { tier, pool }: Offer) -> Placement {
    let gang = turn.state.job(id).demand();
    turn.state.cluster.place_at(gang, pool, tier).expect("it is on offer")
}

/// `learned` and `learn` of a policy that serialises as a whole, but for its options.
macro_rules! learned_whole {
    ($($options:ident)?) => {
        fn learned(&self) -> serde_json::Value {
            serde_json::to_value(self).expect("policies are plain values")
        }

        fn learn(&mut self, learned: serde_json::Value) -> Result<(), serde_json::Error> {
            let learned: Self = serde_json::from_value(learned)?;
            *self = Self { $($options: std::mem::take(&mut self.$options),)? ..learned };
            Ok(())
        }
    };
}
use learned_whole;

/// A policy, or one of them with some options set.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub about: &'static str,
    /// The table of options that it reads, as `--set` names it; many have none.
    pub table: &'static str,
    make: Make,
    /// What makes it another than the policy that it is made of.
    preset: Option<Preset>,
}

#[derive(Debug, Clone, Copy)]
enum Make {
    Built(fn(&Settings) -> Box<dyn Policy>),
    /// By its name.
    Outside(fn(&str) -> Box<dyn Policy>),
}

#[derive(Debug)]
struct Preset {
    /// The options that it sets, whatever the settings say.
    options: &'static [&'static str],
    set: fn(&mut Settings),
}

impl Entry {
    const fn new(
        name: &'static str,
        about: &'static str,
        make: fn(&Settings) -> Box<dyn Policy>,
    ) -> Self {
        Self { name, about, table: name, make: Make::Built(make), preset: None }
    }

    /// A policy that is not in the table, and makes itself from its name.
    pub const fn outside(
        name: &'static str,
        about: &'static str,
        make: fn(&str) -> Box<dyn Policy>,
    ) -> Self {
        Self { name, about, table: "", make: Make::Outside(make), preset: None }
    }

    const fn preset(
        self,
        name: &'static str,
        about: &'static str,
        options: &'static [&'static str],
        set: fn(&mut Settings),
    ) -> Self {
        Self { name, about, preset: Some(Preset { options, set }), ..self }
    }

    pub fn is_outside(&self) -> bool {
        matches!(self.make, Make::Outside(_))
    }

    pub fn build(&self, settings: &Settings) -> Box<dyn Policy> {
        let mut settings = settings.clone();
        if let Some(preset) = &self.preset {
            (preset.set)(&mut settings);
        }
        match self.make {
            Make::Built(make) => make(&settings),
            Make::Outside(make) => make(self.name),
        }
    }
}

const DALLY: Entry = Entry::new("dally", dally::ABOUT, |s| Box::new(Dally::new(&s.dally)));
const TIRESIAS: Entry =
    Entry::new("tiresias", tiresias::ABOUT, |s| Box::new(Tiresias::new(&s.tiresias, false)));
const GANDIVA: Entry =
    Entry::new("gandiva", gandiva::ABOUT, |s| Box::new(Gandiva::new(&s.gandiva)));
const LAS: Entry = Entry::new("las", leases::ABOUT_LAS, |s| Box::new(leases::las(&s.las)));
const SRTF: Entry =
    Entry::new("srtf", shortest::ABOUT_SRTF, |s| Box::new(Shortest::new(false, &s.srtf)));

pub const TABLE: &[Entry] = &[
    DALLY,
    DALLY.preset("dally-no-wait", dally::ABOUT_NO_WAIT, dally::TIMERS, |s| s.dally.wait_for(0.0)),
    DALLY.preset("dally-consolidate", dally::ABOUT_CONSOLIDATE, dally::TIMERS, |s| {
        s.dally.wait_for(f64::INFINITY);
    }),
    DALLY.preset("dally-manual", dally::ABOUT_MANUAL, &["dally.timers"], |s| {
        s.dally.timers = dally::Timers::Fixed;
    }),
    DALLY.preset(
        "dally-no-preempt",
        dally::ABOUT_NO_PREEMPT,
        &["dally.preempt", "dally.upgrade"],
        |s| (s.dally.preempt, s.dally.upgrade) = (false, false),
    ),
    TIRESIAS,
    TIRESIAS.preset(
        "tiresias-authors",
        tiresias::ABOUT_AUTHORS,
        &["tiresias.thresholds", "tiresias.quantiles", "tiresias.placing"],
        |s| {
            s.tiresias.thresholds = tiresias::AUTHORS.to_vec();
            s.tiresias.placing = Placing::Skew;
        },
    ),
    TIRESIAS.preset("tiresias-strict", tiresias::ABOUT_STRICT, &["tiresias.placing"], |s| {
        s.tiresias.placing = Placing::Strict;
    }),
    TIRESIAS.preset("tiresias-plus", tiresias::ABOUT_PLUS, &["tiresias.placing"], |s| {
        s.tiresias.placing = Placing::ByProfile;
    }),
    Entry {
        table: "tiresias",
        ..Entry::new("gittins", tiresias::ABOUT_GITTINS, |s| {
            Box::new(Tiresias::new(&s.tiresias, true))
        })
    },
    GANDIVA,
    GANDIVA.preset("gandiva-rack", gandiva::ABOUT_RACK, &["gandiva.racks"], |s| {
        s.gandiva.racks = true;
    }),
    Entry::new("themis", leases::ABOUT_THEMIS, |s| Box::new(leases::themis(&s.themis))),
    LAS,
    LAS.preset("las-strict", leases::ABOUT_LAS_STRICT, &["las.placing"], |s| {
        s.las.placing = Placing::Strict;
    }),
    Entry::new("fifo", fifo::ABOUT, |_| Box::new(fifo::Fifo)),
    Entry::new("first-fit", first_fit::ABOUT, |_| Box::new(first_fit::FirstFit)),
    SRTF,
    SRTF.preset("srtf-strict", shortest::ABOUT_SRTF_STRICT, &["srtf.placing"], |s| {
        s.srtf.placing = Placing::Strict;
    }),
    Entry {
        table: "srtf",
        ..Entry::new("srsf", shortest::ABOUT_SRSF, |s| Box::new(Shortest::new(true, &s.srtf)))
    },
    Entry::new("fair-share", fair_share::ABOUT, |_| Box::<fair_share::FairShare>::default()),
];

pub fn find(name: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.name == name)
}
