//! Values of options that are not plain numbers or names, and how they are read.

use hither_gnn::correct::ServerSteps;
use hither_gnn::layer::Norm;
use hither_gnn::sample::Fanout;

use crate::inputs::number;

/// How classes count in the loss.
#[derive(Debug, Clone, PartialEq)]
pub enum ClassWeights {
    Balanced,
    Given(Vec<f32>),
}

pub fn class_weights(text: &str) -> Result<ClassWeights, String> {
    if text == "balanced" {
        return Ok(ClassWeights::Balanced);
    }
    let weight = |text: &str| number(text.trim(), 0.0, 1e6).map(|weight| weight as f32);
    let weights: Result<Vec<f32>, String> = text.split(',').map(weight).collect();
    weights.map(ClassWeights::Given).map_err(|_| {
        "expected `balanced`, or numbers from 0 to 1000000 separated by commas".to_owned()
    })
}

/// Training nodes per step; None for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch(pub Option<usize>);

pub fn batch(text: &str) -> Result<Batch, String> {
    match text.parse() {
        _ if text == "full" => Ok(Batch(None)),
        Ok(nodes @ 1..=16_777_216) => Ok(Batch(Some(nodes))),
        _ => Err("expected a number from 1 to 16777216, or `full`".into()),
    }
}

pub fn fanout(text: &str) -> Result<Fanout, String> {
    if text == "all" {
        return Ok(Fanout::All);
    }
    let number = |text: &str| match text.trim().parse() {
        Ok(most @ 1..=1_000_000) => Ok(most),
        _ => Err("expected numbers from 1 to 1000000 separated by commas, or `all`".to_string()),
    };
    let numbers: Vec<usize> = text.split(',').map(number).collect::<Result<_, _>>()?;
    Ok(if let [most] = numbers[..] { Fanout::AtMost(most) } else { Fanout::PerHop(numbers) })
}

pub fn server_steps(text: &str) -> Result<ServerSteps, String> {
    match text.parse() {
        _ if text == "auto" => Ok(ServerSteps::Auto),
        Ok(steps @ 0..=1_000_000) => Ok(ServerSteps::Fixed(steps)),
        _ => Err("expected a number from 0 to 1000000, or `auto`".into()),
    }
}

/// Billions of multiply–adds per second, in sums over rows and in dense products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    pub sums: f64,
    pub products: f64,
}

pub fn speed(text: &str) -> Result<Speed, String> {
    let expected = || "expected two numbers such as 40,80".to_owned();
    let (sums, products) = text.split_once(',').ok_or_else(expected)?;
    let read = |text: &str| number(text.trim(), 1e-6, 1e9).map_err(|_| expected());
    Ok(Speed { sums: read(sums)?, products: read(products)? })
}

pub fn norm(text: &str) -> Result<Norm, String> {
    match text {
        "symmetric" => Ok(Norm::Symmetric),
        "mean" => Ok(Norm::Mean),
        _ => Err("expected symmetric or mean".into()),
    }
}
