//! The steps of one process with what each takes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::calls;
use super::places::{Home, Places};
use super::samples::Sample;
use super::table::MEASURING;
use crate::failure::Failure;
use crate::steps::Steps;

/// Part of the time below which a step that a request does not enter has no line.
const SMALL: f64 = 0.01;

/// A step with what it takes for a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Line {
    pub(crate) step: String,
    /// Instructions in user mode.
    pub(crate) instructions: usize,
    /// System calls by name.
    pub(crate) system_calls: BTreeMap<String, usize>,
    /// CPU time in user mode; none if it was not sampled.
    pub(crate) user_ns: Option<f64>,
    /// CPU time in the kernel.
    pub(crate) kernel_ns: Option<f64>,
}

impl Line {
    fn ns(&self) -> f64 {
        self.user_ns.unwrap_or_default() + self.kernel_ns.unwrap_or_default()
    }

    /// System calls as one text.
    pub(super) fn calls(&self) -> String {
        let one = |(name, count): (&String, &usize)| match count {
            1 => name.clone(),
            count => format!("{count} {name}"),
        };
        self.system_calls.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// The steps while they are summed up.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Steps with the place of their first instruction among all; none if they were only sampled.
    lines: BTreeMap<Home, (Option<usize>, Line)>,
}

impl Budget {
    /// Sums up the instructions of a request and its system calls.
    pub(super) fn of(steps: &Steps, places: &mut Places<'_>) -> Result<Self, Failure> {
        let mut budget = Self::default();
        let homes: Result<Vec<Home>, Failure> =
            steps.addresses().iter().map(|address| places.home(*address)).collect();
        let homes = homes?;
        let (mut begin, mut end) = (0, homes.len());
        let mut caller = homes.iter().find(|home| home.is_of_request()).cloned();
        if homes.contains(&Home::Step(MEASURING)) {
            caller = Some(Home::Step(MEASURING));
            begin = homes.iter().position(Home::is_of_request).unwrap_or(end);
            end = homes.iter().rposition(Home::is_of_request).map_or(begin, |last| last + 1);
        }
        let mut caller = caller.unwrap_or(Home::Kernel);
        let mut calls = steps.calls().iter().peekable();
        for (number, home) in homes.into_iter().enumerate() {
            // Before and after the request, a client's code of others is called by what measures.
            let is_within = (begin..end).contains(&number);
            let home = if is_within { home } else { Home::Step(MEASURING) };
            if matches!(home, Home::Step(_)) {
                caller = home.clone();
            }
            budget.line(home, Some(number)).instructions += 1;
            // A wrapper of the C library is no step: the call is that of the step before it.
            while let Some(call) = calls.next_if(|call| call.step == number) {
                let name = calls::name(call.number);
                let line = budget.line(caller.clone(), Some(number));
                *line.system_calls.entry(name).or_default() += 1;
            }
        }
        Ok(budget)
    }

    /// Adds the time that was sampled. All of it together is `cpu_ns`.
    pub(super) fn add(
        &mut self,
        samples: &[Sample],
        places: &mut Places<'_>,
        cpu_ns: f64,
    ) -> Result<(), Failure> {
        let each = cpu_ns / samples.len().max(1) as f64;
        for (_, line) in self.lines.values_mut() {
            line.user_ns = Some(0.0);
            line.kernel_ns = Some(0.0);
        }
        for Sample { in_kernel, address, stack } in samples {
            let home = match address {
                Some(address) => places.home(*address)?,
                None => Home::Kernel,
            };
            let home = match home {
                // Time in the kernel is that of the step that called.
                Home::Other(_) if *in_kernel => places.caller(stack)?.unwrap_or(Home::Kernel),
                home => home,
            };
            let line = self.line(home, None);
            let (user, kernel) =
                (line.user_ns.unwrap_or_default(), line.kernel_ns.unwrap_or_default());
            let (more_user, more_kernel) = if *in_kernel { (0.0, each) } else { (each, 0.0) };
            line.user_ns = Some(user + more_user);
            line.kernel_ns = Some(kernel + more_kernel);
        }
        Ok(())
    }

    fn join_small(&mut self) {
        let all: f64 = self.lines.values().map(|(_, line)| line.ns()).sum();
        let is_small = |_: &Home, (first, line): &mut (Option<usize>, Line)| {
            first.is_none() && line.ns() < SMALL * all
        };
        let small: Vec<_> = self.lines.extract_if(.., is_small).collect();
        for (_, (_, small)) in small {
            let line = self.line(Home::Rest, None);
            line.user_ns =
                Some(line.user_ns.unwrap_or_default() + small.user_ns.unwrap_or_default());
            line.kernel_ns =
                Some(line.kernel_ns.unwrap_or_default() + small.kernel_ns.unwrap_or_default());
        }
    }

    fn line(&mut self, home: Home, number: Option<usize>) -> &mut Line {
        let (first, line) = self
            .lines
            .entry(home)
            .or_insert_with_key(|home| (None, Line { step: home.name(), ..Line::default() }));
        *first = first.or(number);
        line
    }

    /// Steps in the order in which the request first enters them, then code of others and the
    /// kernel. What is sampled here and there in steps that it does not enter is one line.
    pub(super) fn into_lines(mut self) -> Vec<Line> {
        self.join_small();
        let mut lines: Vec<(Home, Option<usize>, Line)> =
            self.lines.into_iter().map(|(home, (first, line))| (home, first, line)).collect();
        lines.sort_by_key(|(home, first, _)| {
            (!matches!(home, Home::Step(_)), first.is_none(), *first)
        });
        lines.into_iter().map(|(_, _, line)| line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_in_the_order_of_the_request_and_small_times_are_one_line() {
        let mut budget = Budget::default();
        let mut add = |home: Home, number, ns| {
            let line = budget.line(home, number);
            line.instructions += usize::from(number.is_some());
            line.user_ns = Some(ns);
        };
        add(Home::Step(9), Some(0), 40.0);
        add(Home::Other("libc".to_owned()), Some(1), 10.0);
        add(Home::Step(3), Some(2), 0.0);
        add(Home::Step(9), Some(3), 40.0);
        add(Home::Step(5), None, 8.0);
        add(Home::Step(6), None, 0.2);
        add(Home::Other("serde".to_owned()), None, 0.3);
        let lines = budget.into_lines();
        let name = |step| Home::Step(step).name();
        let names: Vec<&str> = lines.iter().map(|line| line.step.as_str()).collect();
        assert_eq!(names, [&name(9), &name(3), &name(5), "other: libc", "other steps"]);
        assert_eq!(lines[0].instructions, 2);
        assert_eq!(lines[4].user_ns, Some(0.5));
    }

    #[test]
    fn calls_are_named_and_counted() {
        let calls = [("read".to_owned(), 1), ("sendto".to_owned(), 2)];
        let line = Line { system_calls: calls.into(), ..Line::default() };
        assert_eq!(line.calls(), "read, 2 sendto");
        assert_eq!(Line::default().calls(), "");
    }
}
