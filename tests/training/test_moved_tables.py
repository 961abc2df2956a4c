"""Embedding tables that another plan moves, and what Keras may do with a model meanwhile."""

import keras
import numpy as np
import pytest
from test_host_embeddings import HOST, ONE, TWO, built, get_variables, trained
from test_row_updates import BATCH, IDS, OPTIMIZERS, Y, assert_same

import tfaccel
from tfaccel.errors import PlanError
from tfaccel.training.fit import plan_of_model

pytestmark = pytest.mark.usefixtures("logical_devices")


@pytest.mark.slow
def test_another_plan_moves_tables_back():
    def result(devices, first, second):
        model = built(OPTIMIZERS["Adagrad"], devices)
        keras_predicts = model.predict(IDS[:BATCH], verbose=0)
        for fields in (first, second):
            plan = plan_of_model(model, batch_size=BATCH, **fields)
            tfaccel.fit(model, IDS, Y, batch_size=BATCH, verbose=0, shuffle=False, plan=plan)
            before, keras_predicts = keras_predicts, model.predict(IDS[:BATCH], verbose=0)
            assert not np.array_equal(keras_predicts, before)  # not those of the table that was there before
        return [*get_variables(model), keras_predicts], []

    dense = {"sum_duplicate_indices": True}
    expected = result((), dense, dense)
    for devices, second in ((ONE, dense), (TWO, dense), (TWO, {"embedding_updates": "rows"})):
        assert_same(result(devices, HOST, second), expected)


@pytest.mark.slow
def test_keras_does_not_update_shared_tables_twice():
    model = built(OPTIMIZERS["Adagrad"], TWO)
    trained(model, **HOST)
    with pytest.raises(PlanError, match=r"tables of this model are in main memory, once for all replicas.*Train with"):
        keras.Model.fit(model, IDS, Y, batch_size=BATCH, verbose=0)
    trained(model, **HOST)
    trained(model)
    keras.Model.fit(model, IDS, Y, batch_size=BATCH, verbose=0)


@pytest.mark.slow
def test_slots_that_are_sharded_next_are_not_updated_twice_either():
    model = built(OPTIMIZERS["Adagrad"], TWO)
    trained(model, **HOST)
    trained(model, optimizer_state="sharded")
    with pytest.raises(PlanError, match=r"slots are not on every replica.*compile the model with a new optimizer for"):
        keras.Model.fit(model, IDS, Y, batch_size=BATCH, verbose=0)


def test_tables_stay_where_they_are_if_the_plan_is_refused():
    model = built(lambda: keras.optimizers.Adam(), ONE)
    with pytest.raises(PlanError, match="its moments decay at each step"):
        trained(model, **HOST)
    assert model.get_layer("shared").embeddings.value.device.endswith("CPU:1")
