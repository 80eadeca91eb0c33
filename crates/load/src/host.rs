//! What the host of this virtual machine takes from it. While the host runs something else, server and
//! client stand still, and no figure of that time is theirs.

use std::time::{Duration, Instant};

/// Looks at the system's count of stolen time at the end of every window.
pub struct Host {
    begin: Instant,
    window: Duration,
    /// Windows that are over.
    over: u128,
    last: Option<Ticks>,
}

/// Time of all processors since the start of the system, in the system's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    stolen: u64,
    all: u64,
}

impl Host {
    /// Windows follow each other from `begin` on.
    pub fn new(begin: Instant, window: Duration) -> Self {
        Self { begin, window, over: 0, last: Ticks::read() }
    }

    /// Where a window has ended since the last look, its number and the share of its time that was stolen.
    /// `None` too where the system does not tell, or where several have ended: which one it was is not known.
    pub fn look(&mut self, now: Instant) -> Option<(usize, f64)> {
        self.look_at(now, Ticks::read)
    }

    fn look_at(
        &mut self,
        now: Instant,
        read: impl FnOnce() -> Option<Ticks>,
    ) -> Option<(usize, f64)> {
        let over = now.saturating_duration_since(self.begin).as_nanos() / self.window.as_nanos();
        if over == self.over {
            return None;
        }
        let (first, before) = (self.over, self.last);
        (self.over, self.last) = (over, read());
        let (before, after) = (before?, self.last?);
        let all = after.all.checked_sub(before.all).filter(|all| *all > 0)?;
        let stolen = after.stolen.saturating_sub(before.stolen);
        (over == first + 1).then_some((first as usize, stolen as f64 / all as f64))
    }
}

impl Ticks {
    fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, and two that
    /// are contained in the first.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Option<Vec<u64>> = line.split_whitespace().map(|t| t.parse().ok()).collect();
        let ticks = ticks?;
        Some(Self { stolen: *ticks.get(7)?, all: ticks[..8].iter().sum() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_number() {
        let text = "cpu  100 1 20 300 4 0 5 70 9 9\ncpu0 1 2 3\n";
        assert_eq!(Ticks::parse(text), Some(Ticks { stolen: 70, all: 500 }));
        for text in ["", "cpu  1 2 3", "cpu  a b c d e f g h", "intr 1 2 3 4 5 6 7 8"] {
            assert_eq!(Ticks::parse(text), None, "{text}");
        }
    }

    #[test]
    fn each_window_is_told_once() {
        let begin = Instant::now();
        let mut host = Host::new(begin, Duration::from_secs(1));
        host.last = Some(Ticks { stolen: 5, all: 1000 });
        let mut look = |ms, stolen, all| {
            host.look_at(begin + Duration::from_millis(ms), || Some(Ticks { stolen, all }))
        };
        assert_eq!(look(999, 9, 1100), None, "the first is not over");
        assert_eq!(look(1001, 25, 1200), Some((0, 0.1)));
        assert_eq!(look(1999, 30, 1300), None);
        assert_eq!(look(2000, 25, 1400), Some((1, 0.0)));
        assert_eq!(look(4100, 50, 1600), None, "two at once");
        assert_eq!(look(5000, 60, 1700), Some((4, 0.1)));
    }
}
