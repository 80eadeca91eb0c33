//! The search for the best way to prefetch, and its names.

use hither_kernels::bag::prefetch::{Hint, Prefetch, search};

fn found(cost: impl Fn(Prefetch) -> f64) -> Prefetch {
    let time = |ways: &[Prefetch]| Ok(ways.iter().map(|way| cost(*way)).collect());
    search::<std::convert::Infallible>(0.02, time).expect("it cannot fail")
}

/// A smooth valley around one point: every point of the grid is found from the start.
#[test]
fn the_best_way_is_found() {
    for hint in [Hint::L1, Hint::L2] {
        for bytes in [1 << 10, 4 << 10, 16 << 10, 64 << 10, 128 << 10] {
            let best = Prefetch::Ahead { hint, bytes };
            let cost = |way: Prefetch| match way {
                Prefetch::Off => 100.0,
                Prefetch::Ahead { hint: h, bytes: b } => {
                    let far = (b as f64).log2() - (bytes as f64).log2();
                    20.0 + 3.0 * far.abs() + if h == hint { 0.0 } else { 30.0 }
                }
            };
            assert_eq!(found(cost), best);
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
    let odd = Prefetch::Ahead { hint: Hint::L1, bytes: 1000 };
    assert_eq!(odd.to_string(), "l1:1000");
    for bad in ["", "far:64", "l1", "l1:0", "l2:2048K", "l2:8K:all", "l3:8K"] {
        assert!(bad.parse::<Prefetch>().is_err(), "{bad}");
    }
}
