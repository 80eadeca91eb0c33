//! The bars of the schedule: which job held which GPUs of which machine, and when.

use std::collections::HashMap;

use hither_core::record::{ClusterRow, EventRow, Happening};

use crate::curve::bounds;

/// Upper bound on bars; no screen can show more. The shortest are dropped.
pub const SPANS_MAX: usize = 1_000_000;

/// Upper bound on GPUs per machine; a corrupt record must not make us reserve memory.
const LANES_MAX: u32 = 1024;

/// `Span::job` of a machine that is down.
pub const DOWN: i64 = -1;

/// A job on neighbouring GPUs of one machine. Spans of one machine and lane never overlap, so a
/// reader can find those in view by bisection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Row of the machine on the page.
    pub row: i64,
    /// First GPU of the machine, as drawn; the record does not number them.
    pub lane: i64,
    pub start_ms: i64,
    pub end_ms: i64,
    pub gpus: i64,
    /// Position in the run's job rows.
    pub job: i64,
    pub tier: i64,
}

/// All bars of a run's schedule.
pub struct Schedule {
    /// Sorted by row, lane and start.
    pub spans: Vec<Span>,
    /// How many were left out to keep within [`SPANS_MAX`].
    pub dropped: usize,
}

/// Machines in the order in which they are drawn: place by place, from the outside in.
pub fn rows(cluster: &ClusterRow) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cluster.machines.len()).collect();
    order.sort_by_cached_key(|&m| {
        let mut path = cluster.path(cluster.machines[m].parent);
        path.reverse();
        path
    });
    order
}

struct Open {
    span: Span,
    machine: usize,
}

struct Builder<'a> {
    row_of: Vec<i64>,
    /// Per machine and GPU: taken or not.
    lanes: Vec<Vec<bool>>,
    position: &'a HashMap<u32, u32>,
    running: HashMap<u32, Vec<Open>>,
    down: HashMap<u32, i64>,
    spans: Vec<Span>,
}

/// The bars of a run. `position` maps the job number of an event to its index in the run's job rows.
pub fn schedule(
    cluster: &ClusterRow,
    events: &[EventRow],
    position: &HashMap<u32, u32>,
) -> Schedule {
    let Some((start, end)) = bounds(events) else {
        return Schedule { spans: Vec::new(), dropped: 0 };
    };
    let mut row_of = vec![0; cluster.machines.len()];
    for (row, machine) in rows(cluster).into_iter().enumerate() {
        row_of[machine] = row as i64;
    }
    let mut builder = Builder {
        row_of,
        lanes: cluster
            .machines
            .iter()
            .map(|m| vec![false; m.gpus.min(LANES_MAX) as usize])
            .collect(),
        position,
        running: HashMap::new(),
        down: HashMap::new(),
        spans: Vec::new(),
    };
    let ms = |t: f64| ((t - start) * 1000.0).round() as i64;
    for event in events.iter().filter(|e| e.t.is_finite()) {
        builder.apply(ms(event.t), &event.what);
    }
    builder.close_all(ms(end));
    finished(builder.spans)
}

impl Builder<'_> {
    fn apply(&mut self, now: i64, what: &Happening) {
        match what {
            Happening::Start { job, tier, machines, .. } => {
                self.end(now, *job);
                self.start(now, *job, *tier, machines);
            }
            Happening::Preempt { job, .. }
            | Happening::Finish { job }
            | Happening::Cancel { job } => {
                self.end(now, *job);
            }
            Happening::MachineDown { machine } => {
                self.down.entry(*machine).or_insert(now);
            }
            Happening::MachineUp { machine } => self.up(now, *machine),
            Happening::Arrive { .. }
            | Happening::Decline { .. }
            | Happening::Timers { .. }
            | Happening::Links { .. } => {}
        }
    }

    fn start(&mut self, now: i64, job: u32, tier: u8, machines: &[(u32, u32)]) {
        let Some(&position) = self.position.get(&job) else { return };
        let mut open = Vec::new();
        for &(machine, gpus) in machines {
            let machine = machine as usize;
            let Some(lanes) = self.lanes.get_mut(machine) else { continue };
            for (lane, count) in take(lanes, gpus as usize) {
                let span = Span {
                    row: self.row_of[machine],
                    lane: lane as i64,
                    start_ms: now,
                    end_ms: now,
                    gpus: count as i64,
                    job: i64::from(position),
                    tier: i64::from(tier),
                };
                open.push(Open { span, machine });
            }
        }
        self.running.insert(job, open);
    }

    fn end(&mut self, now: i64, job: u32) {
        for Open { span, machine } in self.running.remove(&job).unwrap_or_default() {
            let first = span.lane as usize;
            self.lanes[machine][first..first + span.gpus as usize].fill(false);
            self.spans.push(Span { end_ms: now, ..span });
        }
    }

    fn up(&mut self, now: i64, machine: u32) {
        let Some(since) = self.down.remove(&machine) else { return };
        let Some(lanes) = self.lanes.get(machine as usize) else { return };
        self.spans.push(Span {
            row: self.row_of[machine as usize],
            lane: 0,
            start_ms: since,
            end_ms: now,
            gpus: lanes.len() as i64,
            job: DOWN,
            tier: 0,
        });
    }

    fn close_all(&mut self, now: i64) {
        let running: Vec<u32> = self.running.keys().copied().collect();
        running.into_iter().for_each(|job| self.end(now, job));
        let down: Vec<u32> = self.down.keys().copied().collect();
        down.into_iter().for_each(|machine| self.up(now, machine));
    }
}

/// Takes `wanted` free lanes, in one piece if there is a gap for it and otherwise in several; fewer
/// where the record claims more GPUs than the machine has.
fn take(lanes: &mut [bool], wanted: usize) -> Vec<(usize, usize)> {
    let mut gaps = Vec::new();
    let mut at = 0;
    while at < lanes.len() {
        let gap = lanes[at..].iter().take_while(|taken| !**taken).count();
        if gap > 0 {
            gaps.push((at, gap));
        }
        at += gap.max(1);
    }
    // The tightest gap that holds all, so that wide jobs find wide gaps later.
    if let Some(&(first, _)) = gaps.iter().filter(|g| g.1 >= wanted).min_by_key(|g| g.1) {
        gaps = vec![(first, wanted)];
    }
    let mut left = wanted;
    let mut pieces = Vec::new();
    for (first, gap) in gaps {
        let count = gap.min(left);
        if count > 0 {
            lanes[first..first + count].fill(true);
            pieces.push((first, count));
            left -= count;
        }
    }
    pieces
}

fn finished(mut spans: Vec<Span>) -> Schedule {
    spans.retain(|s| s.end_ms > s.start_ms);
    spans.sort_unstable();
    // A job that is stopped and started again at once on the same GPUs never left them.
    spans.dedup_by(|next, last| {
        let same = |s: &Span| (s.row, s.lane, s.gpus, s.job, s.tier);
        let continues = same(next) == same(last) && next.start_ms == last.end_ms;
        if continues {
            last.end_ms = next.end_ms;
        }
        continues
    });
    let before = spans.len();
    if before > SPANS_MAX {
        let length = |s: &Span| s.end_ms - s.start_ms;
        let mut lengths: Vec<i64> = spans.iter().map(length).collect();
        let (_, &mut shortest, _) = lengths.select_nth_unstable(before - SPANS_MAX);
        spans.retain(|s| length(s) > shortest);
    }
    Schedule { dropped: before - spans.len(), spans }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::record::{LevelRow, MachineRow, Reason};

    fn cluster() -> ClusterRow {
        let machine =
            |parent| MachineRow { name: "m".into(), parent, gpus: 4, gpu_type: "x".into() };
        ClusterRow {
            name: "c".into(),
            levels: LevelRow::racks(["r0", "r1"]),
            machines: vec![machine(1), machine(0)],
        }
    }

    fn at(t: f64, what: Happening) -> EventRow {
        EventRow { t, what }
    }

    fn start(t: f64, job: u32, machines: &[(u32, u32)]) -> EventRow {
        at(t, Happening::Start { job, tier: 0, machines: machines.to_vec(), why: None })
    }

    fn spans(events: &[EventRow]) -> Vec<(i64, i64, i64, i64, i64, i64)> {
        let position = (0..9).map(|j| (j, j)).collect();
        let schedule = schedule(&cluster(), events, &position);
        schedule
            .spans
            .iter()
            .map(|s| (s.row, s.lane, s.gpus, s.job, s.start_ms, s.end_ms))
            .collect()
    }

    #[test]
    fn machines_are_drawn_rack_by_rack_and_gpus_in_gaps() {
        let events = [
            start(10.0, 0, &[(0, 1)]),
            start(10.0, 1, &[(0, 1)]),
            start(10.0, 2, &[(0, 1)]),
            at(11.0, Happening::Finish { job: 1 }),
            start(11.0, 3, &[(0, 2), (1, 1)]),
            at(12.0, Happening::Finish { job: 3 }),
            at(12.0, Happening::Finish { job: 0 }),
            at(13.0, Happening::Finish { job: 2 }),
        ];
        assert_eq!(
            spans(&events),
            [
                (0, 0, 1, 3, 1000, 2000),
                (1, 0, 1, 0, 0, 2000),
                (1, 1, 1, 1, 0, 1000),
                (1, 1, 1, 3, 1000, 2000),
                (1, 2, 1, 2, 0, 3000),
                (1, 3, 1, 3, 1000, 2000),
            ]
        );
    }

    #[test]
    fn restarts_in_place_merge_and_the_unfinished_end_with_the_record() {
        let events = [
            start(0.0, 0, &[(1, 4)]),
            at(1.0, Happening::Preempt { job: 0, reason: Reason::TimeSlice, why: None }),
            start(1.0, 0, &[(1, 4)]),
            at(2.0, Happening::MachineDown { machine: 0 }),
            at(5.0, Happening::Arrive { job: 1, gpus: 1 }),
        ];
        assert_eq!(spans(&events), [(0, 0, 4, 0, 0, 5000), (1, 0, 4, DOWN, 2000, 5000)]);
    }

    #[test]
    fn impossible_rows_are_survived() {
        let events = [
            start(0.0, 0, &[(0, 99), (55, 1)]),
            start(0.0, 77, &[(1, 1)]),
            at(0.5, Happening::Finish { job: 8 }),
            at(1.0, Happening::Finish { job: 0 }),
        ];
        assert_eq!(spans(&events), [(1, 0, 4, 0, 0, 1000)]);
    }
}
