//! What is said of a request beside its verb.

use std::time::Duration;

use piped_client::Class;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::clock::span;

/// How a request deviates from the defaults. Read before its buffer is taken: wrong words leave
/// that where it is.
#[derive(Clone, Copy)]
pub(super) struct Options {
    class: Class,
    deadline: Option<Duration>,
}

impl Options {
    pub(super) fn new(timeout: Option<f64>, urgency: Option<&str>) -> PyResult<Self> {
        Ok(Self { class: class_of(urgency)?, deadline: timeout.map(span).transpose()? })
    }

    pub(super) fn dress<B>(self, request: piped_client::Request<B>) -> piped_client::Request<B> {
        let request = request.class(self.class);
        match self.deadline {
            Some(deadline) => request.deadline(deadline),
            None => request,
        }
    }
}

/// The class of a name.
pub(crate) fn class_of(urgency: Option<&str>) -> PyResult<Class> {
    match urgency {
        None => Ok(Class::Session),
        Some("latency") => Ok(Class::Latency),
        Some("bulk") => Ok(Class::Bulk),
        Some(_) => Err(PyValueError::new_err("urgency is None, \"latency\" or \"bulk\"")),
    }
}
