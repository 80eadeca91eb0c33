//! The search for the best way to prefetch, and its names.

use hither_kernels::bag::prefetch::{Hint, Lines, Prefetch, search};

fn found(cost: impl Fn(Prefetch) -> f64) -> Prefetch {
    let time = |ways: &[Prefetch]| Ok(ways.iter().map(|way| cost(*way)).collect());
    search::<std::convert::Infallible>(0.02, time).expect("it cannot fail")
}

/// A smooth valley around one point: every point of the grid is found from the start.
#[test]
fn the_best_way_is_found() {
    for hint in [Hint::L1, Hint::L2, Hint::Nta] {
        for bytes in [1 << 10, 4 << 10, 16 << 10, 64 << 10, 128 << 10] {
            for lines in [Lines::First, Lines::All] {
                let best = Prefetch::Ahead { hint, bytes, lines };
                let cost = |way: Prefetch| match way {
                    Prefetch::Off => 100.0,
                    Prefetch::Ahead { hint: h, bytes: b, lines: l } => {
                        let far = (b as f64).log2() - (bytes as f64).log2();
                        let hint = if h == hint { 0.0 } else { 30.0 };
                        20.0 + 3.0 * far.abs() + hint + if l == lines { 0.0 } else { 1.0 }
                    }
                };
                assert_eq!(found(cost), best);
            }
        }
    }
}

#[test]
fn among_equals_the_simplest_wins() {
    assert_eq!(found(|_| 10.0), Prefetch::Off);
    let cost = |way| if way == Prefetch::Off { 10.0 } else { 9.9 };
    assert_eq!(found(cost), Prefetch::Off);
    let cost = |way| if way == Prefetch::Off { 10.0 } else { 9.0 };
    let Prefetch::Ahead { hint, .. } = found(cost) else { panic!("it gains a tenth") };
    assert_eq!(hint, Hint::L1);
}

#[test]
fn names_are_read_back() {
    for way in Prefetch::CANDIDATES {
        assert_eq!(way.to_string().parse::<Prefetch>().expect("a name"), way);
    }
    let odd = Prefetch::Ahead { hint: Hint::Nta, bytes: 1000, lines: Lines::First };
    assert_eq!(odd.to_string(), "nta:1000:2");
    for bad in ["", "far:64", "l1", "l1:0:all", "l2:2048K:all", "l2:8K:3", "l3:8K:all"] {
        assert!(bad.parse::<Prefetch>().is_err(), "{bad}");
    }
}
