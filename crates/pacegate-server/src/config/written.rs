//! Scalars as they are written in the file.

use serde_saphyr::Location;

use super::{
    place::{At, Form, NoMap, Scalar},
    problem::Problems,
};

/// Returns one or several texts with their positions.
pub(super) fn texts(
    written: &At<Form<NoMap>>,
    problems: &mut Problems<'_>,
) -> Option<Vec<At<String>>> {
    match &written.value {
        Form::One(Scalar::Nothing) => {
            problems.add(written.place, "missing value: write one, or remove the field");
            None
        }
        Form::One(scalar) => {
            Some(vec![written.with(scalar_text(scalar, written.origin, problems))])
        }
        Form::List(list) => Some(list.iter().map(|text| text.with(text.value.clone())).collect()),
        Form::Map(never) => match **never {},
    }
}

/// Returns a scalar as it is written in the file.
pub(super) fn scalar_text(scalar: &Scalar, origin: Location, problems: &Problems<'_>) -> String {
    match scalar {
        Scalar::Text(text) => text.clone(),
        Scalar::Plain => problems.written(origin).unwrap_or_default().to_owned(),
        Scalar::Nothing => String::new(),
    }
}
