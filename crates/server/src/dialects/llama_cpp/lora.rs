//! llama.cpp's `/lora-adapters`: the adapters of a model and their scales.

use crate::app::RequestContext;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::json::ObjectFields;
use crate::model::ServedModel;
use axum::body::Body;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

fn loaded(asker: &RequestContext) -> Result<Option<Arc<ServedModel>>, ApiError> {
    Ok(asker.model()?.served)
}

/// `GET /lora-adapters`. The list is empty for a model that is not loaded.
pub(crate) async fn lora_adapters(asker: RequestContext) -> Response {
    let list = loaded(&asker).map(|model| model.map_or_else(|| json!([]), |model| model.adapters.list()));
    asker.reply_json(Dialect::LlamaCpp, list)
}

/// `POST /lora-adapters`: sets the scales of later requests without `lora`. As in llama.cpp,
/// adapters that the list does not name get 0.
pub(crate) async fn set_lora_adapters(asker: RequestContext, body: Body) -> Response {
    let result = set(&asker, body).await;
    asker.reply_json(Dialect::LlamaCpp, result)
}

async fn set(asker: &RequestContext, body: Body) -> Result<Value, ApiError> {
    let list = asker.read_list(body).await?;
    let list = list.iter().enumerate().map(|(i, value)| ObjectFields::of(value, format!("[{i}]")));
    let list = list.collect::<Result<Vec<_>, _>>()?;
    let Some(model) = loaded(asker)? else {
        return Err(ApiError::invalid("the model is not loaded: send it a request first"));
    };
    model.adapters.set(model.adapters.scales(&list)?);
    Ok(json!({"success": true}))
}
