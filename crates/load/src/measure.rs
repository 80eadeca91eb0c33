//! Answers become figures. Requests are booked by the moment at which they were meant to be sent,
//! never by the moment at which the client got round to it: a server that stalls delays its callers,
//! and the delay belongs in the latency (otherwise: coordinated omission).

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency that histograms tell apart; longer ones count as this.
const LATENCY_MAX: Duration = Duration::from_secs(600);

/// How one request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Answered,
    /// The server was too busy: 503, 429, UNAVAILABLE or RESOURCE_EXHAUSTED.
    Refused,
    /// Any other error, with its message.
    Failed(String),
    /// No answer within the time limit.
    TimedOut,
}

/// All requests that were meant to be sent within one stretch of time.
#[derive(Debug, Clone)]
pub struct Window {
    issued: u64,
    answered: u64,
    refused: u64,
    failed: u64,
    timed_out: u64,
    /// Answered within the SLO.
    good: u64,
    /// Nanoseconds from the intended send to the answer; requests without an answer count with the
    /// time limit.
    latency: Histogram<u64>,
    /// The same of refusals.
    refusal: Histogram<u64>,
    /// Sum over requests of the time from the intended send to the real one.
    send_delay: Duration,
    /// The share of the processors' time that the host of this virtual machine took; `None` where it is
    /// not known.
    stolen_share: Option<f64>,
}

impl Window {
    fn new() -> Self {
        let histogram = || {
            Histogram::new_with_bounds(1_000, LATENCY_MAX.as_nanos() as u64, 3)
                .expect("the bounds are constants")
        };
        Self {
            issued: 0,
            answered: 0,
            refused: 0,
            failed: 0,
            timed_out: 0,
            good: 0,
            latency: histogram(),
            refusal: histogram(),
            send_delay: Duration::ZERO,
            stolen_share: None,
        }
    }

    fn completed(&self) -> u64 {
        self.answered + self.refused + self.failed + self.timed_out
    }

    fn add(&mut self, other: &Self) {
        self.issued += other.issued;
        self.answered += other.answered;
        self.refused += other.refused;
        self.failed += other.failed;
        self.timed_out += other.timed_out;
        self.good += other.good;
        self.send_delay += other.send_delay;
        for (own, other) in
            [(&mut self.latency, &other.latency), (&mut self.refusal, &other.refusal)]
        {
            own.add(other).expect("all histograms have the same bounds");
        }
    }
}

/// When a request was meant to be sent, was sent, and ended.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub intended: Instant,
    pub sent: Instant,
    pub ended: Instant,
}

/// Books requests into windows. Requests before `start` are warm-up and are not booked.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    window: Duration,
    slo: Option<Duration>,
    windows: Vec<Window>,
    /// The first message of a failed request.
    failure: Option<String>,
}

impl Recorder {
    pub fn new(start: Instant, window: Duration, slo: Option<Duration>) -> Self {
        Self { start, window, slo, windows: Vec::new(), failure: None }
    }

    fn window_of(&mut self, intended: Instant) -> Option<&mut Window> {
        let since = intended.checked_duration_since(self.start)?;
        let at = (since.as_nanos() / self.window.as_nanos()) as usize;
        if at >= self.windows.len() {
            self.windows.resize_with(at + 1, Window::new);
        }
        self.windows.get_mut(at)
    }

    pub fn issue(&mut self, intended: Instant) {
        if let Some(window) = self.window_of(intended) {
            window.issued += 1;
        }
    }

    pub fn complete(&mut self, times: Times, outcome: Outcome) {
        let slo = self.slo;
        let latency = times.ended.saturating_duration_since(times.intended);
        let latency_ns = latency.min(LATENCY_MAX).as_nanos() as u64;
        if let (Outcome::Failed(message), None) = (&outcome, &self.failure) {
            self.failure = Some(message.clone());
        }
        let Some(window) = self.window_of(times.intended) else { return };
        window.send_delay += times.sent.saturating_duration_since(times.intended);
        match outcome {
            Outcome::Answered => {
                window.answered += 1;
                window.good += u64::from(slo.is_none_or(|slo| latency <= slo));
                window.latency.saturating_record(latency_ns);
            }
            Outcome::Refused => {
                window.refused += 1;
                window.refusal.saturating_record(latency_ns);
            }
            Outcome::Failed(_) => window.failed += 1,
            Outcome::TimedOut => {
                window.timed_out += 1;
                window.latency.saturating_record(latency_ns);
            }
        }
    }

    /// The number of windows, from the first on, that are over and whose requests have all ended.
    pub fn closed(&self, now: Instant) -> usize {
        let over = now.saturating_duration_since(self.start).as_nanos() / self.window.as_nanos();
        let is_whole = |window: &&Window| window.issued == window.completed();
        self.windows.iter().take(over as usize).take_while(is_whole).count()
    }

    /// Notes the share of the processors' time that the host took during a window.
    pub fn note_stolen(&mut self, window: usize, share: f64) {
        if let Some(window) = self.windows.get_mut(window) {
            window.stolen_share = Some(share);
        }
    }

    /// The numbers of those of the first `closed` windows in which the host took no more than `stolen_max`.
    pub fn kept(&self, closed: usize, stolen_max: f64) -> Vec<usize> {
        let is_kept =
            |window: &usize| self.windows[*window].stolen_share.is_none_or(|s| s <= stolen_max);
        (0..closed.min(self.windows.len())).filter(is_kept).collect()
    }

    /// Whether windows agree within a share of their mean, in answers and in median latency.
    pub fn is_stable(&self, windows: &[usize], share: f64) -> bool {
        let agree = |value: fn(&Window) -> f64| {
            let values: Vec<f64> = windows.iter().map(|w| value(&self.windows[*w])).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            values.iter().all(|value| (value - mean).abs() <= share * mean)
        };
        agree(|window| window.answered as f64)
            && agree(|window| window.latency.value_at_quantile(0.5) as f64)
    }

    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Figures of some windows taken together, and of each alone.
    pub fn figures(&self, windows: &[usize], samples: usize) -> (Figures, Vec<Figures>) {
        let windows: Vec<&Window> = windows.iter().filter_map(|w| self.windows.get(*w)).collect();
        let mut all = Window::new();
        windows.iter().for_each(|window| all.add(window));
        let stolen: Option<Vec<f64>> = windows.iter().map(|window| window.stolen_share).collect();
        let mean = |shares: Vec<f64>| shares.iter().sum::<f64>() / shares.len() as f64;
        all.stolen_share = stolen.filter(|shares| !shares.is_empty()).map(mean);
        let span_s = self.window.as_secs_f64();
        let of = |window: &Window, count: usize| {
            Figures::from_window(window, span_s * count as f64, samples)
        };
        (of(&all, windows.len().max(1)), windows.into_iter().map(|window| of(window, 1)).collect())
    }
}

/// The figures of one stretch of time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    pub span_s: f64,
    pub requests: u64,
    pub answered: u64,
    pub refused: u64,
    pub failed: u64,
    pub timed_out: u64,
    pub requests_per_s: f64,
    /// Answered requests.
    pub answered_per_s: f64,
    /// Samples of answered requests.
    pub samples_per_s: f64,
    /// Requests answered within the SLO; all answered ones where there is none.
    pub good_per_s: f64,
    pub latency: Latency,
    /// How long refusals took.
    pub refusal: Latency,
    /// From the intended send to the real one, on average.
    pub send_delay_us: f64,
    /// The share of the processors' time that the host of this virtual machine took; `None` where it is
    /// not known.
    pub stolen_share: Option<f64>,
}

impl Figures {
    fn from_window(window: &Window, span_s: f64, samples: usize) -> Self {
        let per_s = |count: u64| count as f64 / span_s;
        Self {
            span_s,
            requests: window.issued,
            answered: window.answered,
            refused: window.refused,
            failed: window.failed,
            timed_out: window.timed_out,
            requests_per_s: per_s(window.issued),
            answered_per_s: per_s(window.answered),
            samples_per_s: per_s(window.answered) * samples as f64,
            good_per_s: per_s(window.good),
            latency: Latency::from_histogram(&window.latency),
            refusal: Latency::from_histogram(&window.refusal),
            send_delay_us: window.send_delay.as_secs_f64() * 1e6 / window.completed().max(1) as f64,
            stolen_share: window.stolen_share,
        }
    }

    /// Requests that were not answered, as a share of all.
    pub fn lost_share(&self) -> f64 {
        (self.requests - self.answered.min(self.requests)) as f64 / self.requests.max(1) as f64
    }
}

/// Latency in microseconds; zeros where nothing was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

impl Latency {
    fn from_histogram(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            mean_us: histogram.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max() as f64 / 1e3,
        }
    }

    /// One of the quantiles that are kept, by its percentage.
    pub fn percentile_us(&self, percentile: Percentile) -> f64 {
        match percentile {
            Percentile::P50 => self.p50_us,
            Percentile::P90 => self.p90_us,
            Percentile::P95 => self.p95_us,
            Percentile::P99 => self.p99_us,
            Percentile::P999 => self.p999_us,
        }
    }
}

/// The percentile that a latency target is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Percentile {
    P50,
    P90,
    P95,
    P99,
    P999,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn book(recorder: &mut Recorder, start: Instant, at_ms: u32, took_ms: u32, outcome: Outcome) {
        let intended = start + at_ms * MS;
        recorder.issue(intended);
        let times = Times { intended, sent: intended + MS / 2, ended: intended + took_ms * MS };
        recorder.complete(times, outcome);
    }

    #[test]
    fn requests_are_booked_by_their_intended_time() {
        let start = Instant::now();
        let mut recorder = Recorder::new(start + 100 * MS, 100 * MS, Some(5 * MS));
        book(&mut recorder, start, 50, 1, Outcome::Answered); // warm-up
        for i in 0..100 {
            // One stall of a second: every request behind it waits, and says so.
            let took = if i < 10 { 1000 - i } else { 2 };
            book(&mut recorder, start, 100 + i, took, Outcome::Answered);
        }
        book(&mut recorder, start, 250, 1, Outcome::Refused);
        book(&mut recorder, start, 251, 1, Outcome::Failed("no".into()));
        book(&mut recorder, start, 252, 1, Outcome::Failed("again".into()));
        book(&mut recorder, start, 253, 80, Outcome::TimedOut);
        let (all, each) = recorder.figures(&[0, 1], 16);
        assert_eq!((all.requests, all.answered, all.refused), (104, 100, 1));
        assert_eq!((all.failed, all.timed_out), (2, 1));
        assert_eq!(recorder.failure(), Some("no"));
        assert_eq!(each.len(), 2);
        assert!((each[0].latency.p50_us / 2e3 - 1.0).abs() < 0.01, "{:?}", each[0].latency);
        assert!(each[0].latency.p95_us > 990e3, "the stall is in the tail");
        assert_eq!(each[0].good_per_s, 900.0);
        assert_eq!(each[0].samples_per_s, 16_000.0);
        assert!(
            (each[1].latency.p99_us / 80e3 - 1.0).abs() < 0.01,
            "a time-out counts with its limit"
        );
        assert!((all.send_delay_us - 500.0).abs() < 1.0);
        assert_eq!(all.lost_share(), 4.0 / 104.0);
    }

    #[test]
    fn a_window_is_closed_when_its_last_request_has_ended() {
        let start = Instant::now();
        let mut recorder = Recorder::new(start, 100 * MS, None);
        recorder.issue(start + 10 * MS);
        book(&mut recorder, start, 150, 1, Outcome::Answered);
        assert_eq!(recorder.closed(start + 300 * MS), 0);
        let times =
            Times { intended: start + 10 * MS, sent: start + 10 * MS, ended: start + 210 * MS };
        recorder.complete(times, Outcome::Answered);
        assert_eq!(recorder.closed(start + 300 * MS), 2);
        assert_eq!(recorder.closed(start + 150 * MS), 1, "the second window is not over");
    }

    #[test]
    fn windows_agree_or_do_not() {
        let start = Instant::now();
        let mut recorder = Recorder::new(start, 100 * MS, None);
        for window in 0..4 {
            for i in 0..20 {
                let took = if window == 3 { 4 } else { 2 };
                book(&mut recorder, start, window * 100 + i, took, Outcome::Answered);
            }
        }
        assert!(recorder.is_stable(&[0, 1, 2], 0.1));
        assert!(!recorder.is_stable(&[1, 2, 3], 0.1), "latency doubled");
        assert!(recorder.is_stable(&[3], 0.1), "one agrees with itself");
    }

    #[test]
    fn disturbed_windows_are_left_out() {
        let start = Instant::now();
        let mut recorder = Recorder::new(start, 100 * MS, None);
        for window in 0..4 {
            let took = if window == 1 { 90 } else { 2 };
            book(&mut recorder, start, window * 100, took, Outcome::Answered);
        }
        assert_eq!(recorder.kept(4, 0.01), [0, 1, 2, 3], "nothing is known of the host");
        for (window, stolen) in [0.0, 0.2, 0.01, 0.02].into_iter().enumerate() {
            recorder.note_stolen(window, stolen);
        }
        let kept = recorder.kept(4, 0.01);
        assert_eq!(kept, [0, 2]);
        assert_eq!(recorder.kept(2, 0.01), [0]);
        let (all, each) = recorder.figures(&kept, 1);
        assert_eq!((all.requests, each.len(), all.stolen_share), (2, 2, Some(0.005)));
        assert!(all.latency.max_us < 3e3, "the stall is in the window that is left out");
    }
}
