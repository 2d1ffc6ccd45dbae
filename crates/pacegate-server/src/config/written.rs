//! Texts as they were written.

use serde_saphyr::Location;

use super::{
    place::{At, Form, NoMap, Scalar},
    problem::Problems,
};

/// One text or several, each with its place.
pub(super) fn texts(
    written: &At<Form<NoMap>>,
    problems: &mut Problems<'_>,
) -> Option<Vec<At<String>>> {
    match &written.value {
        Form::One(Scalar::Nothing) => {
            problems
                .add(written.place, "there is no value here: write one, or leave the field out");
            None
        }
        Form::One(scalar) => {
            Some(vec![written.with(scalar_text(scalar, written.origin, problems))])
        }
        Form::List(list) => Some(list.iter().map(|text| text.with(text.value.clone())).collect()),
        Form::Map(never) => match **never {},
    }
}

/// A scalar as it was written.
pub(super) fn scalar_text(scalar: &Scalar, origin: Location, problems: &Problems<'_>) -> String {
    match scalar {
        Scalar::Text(text) => text.clone(),
        Scalar::Plain => problems.written(origin).unwrap_or_default().to_owned(),
        Scalar::Nothing => String::new(),
    }
}
