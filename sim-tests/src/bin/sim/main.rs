//! `sim`: runs seeds of the simulation, shows one again, and shows that the checks find seeded bugs.

#[cfg(madsim)]
mod mutants;
#[cfg(madsim)]
mod tool;

#[cfg(madsim)]
fn main() -> std::process::ExitCode {
    tool::main()
}

#[cfg(not(madsim))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "the simulation is built with --cfg madsim:\n  RUSTFLAGS=\"--cfg madsim\" cargo run -p verdict-sim-tests --bin sim \
         --profile sim --target-dir target/sim -- run --seeds 100"
    );
    std::process::ExitCode::FAILURE
}
