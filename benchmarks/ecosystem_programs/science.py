"""Probability and science: gpytorch, botorch, pyro, flows, differential equations, geometry."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.ecosystem_programs.program import Family

FAMILY = Family()


@FAMILY.training("gpytorch", rtol=1e-2, atol=1e-3)
def exact_gaussian_process_likelihood() -> Any:
    import gpytorch

    x = torch.linspace(0, 1, 24)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, torch.sin(6 * x), likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(likelihood).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return lambda y: -objective(model(x), y), lambda: (torch.randn(24),), (model, likelihood)


@FAMILY.training("gpytorch")
def kernels_are_composed() -> Any:
    from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

    kernel = ScaleKernel(RBFKernel(ard_num_dims=3)) + MaternKernel(nu=2.5) * PeriodicKernel()
    return lambda x: kernel(x).to_dense(), lambda: (torch.randn(16, 3),), (kernel,)


@FAMILY.inference("gpytorch", rtol=1e-2, atol=1e-3)
def predictive_posterior() -> Any:
    import gpytorch

    x = torch.linspace(0, 1, 16).double()

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, torch.sin(6 * x), likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.RBFKernel()

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Model(likelihood).double().eval()
    likelihood.eval()

    def predict(points: torch.Tensor) -> Any:
        posterior = likelihood(model(points))
        return posterior.mean, posterior.variance

    return predict, lambda: (torch.rand(8).double(),), (model,)


@FAMILY.training("gpytorch", rtol=1e-2, atol=1e-3)
def variational_bound() -> Any:
    import gpytorch
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            points = torch.linspace(0, 1, 8).unsqueeze(-1)
            strategy = VariationalStrategy(self, points, CholeskyVariationalDistribution(8))
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model, likelihood = Model().train(), gpytorch.likelihoods.GaussianLikelihood()
    model(torch.rand(4, 1))  # sets the variational distribution from the prior
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=100)
    return (
        lambda x, y: -bound(model(x), y),
        lambda: (torch.rand(16, 1), torch.randn(16)),
        (model, likelihood),
    )


@FAMILY.inference("botorch", rtol=1e-2, atol=1e-3)
def expected_improvement() -> Any:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = torch.rand(12, 2).double()
    model = SingleTaskGP(x, (x.sin().sum(1, keepdim=True))).eval()
    return LogExpectedImprovement(model, best_f=1.0), lambda: (torch.rand(5, 1, 2).double(),)


@FAMILY.inference("botorch", rtol=1e-2, atol=1e-3)
def monte_carlo_acquisition() -> Any:
    from botorch.acquisition import qUpperConfidenceBound
    from botorch.models import SingleTaskGP
    from botorch.sampling import SobolQMCNormalSampler

    x = torch.rand(12, 2).double()
    model = SingleTaskGP(x, (x.sin().sum(1, keepdim=True))).eval()
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=1)
    return qUpperConfidenceBound(model, beta=0.2, sampler=sampler), lambda: (
        torch.rand(3, 2, 2).double(),
    )


@FAMILY.inference("botorch")
def test_functions_and_pareto_front() -> Any:
    from botorch.test_functions import Ackley, BraninCurrin
    from botorch.utils.multi_objective.pareto import is_non_dominated

    ackley, branin = Ackley(dim=2), BraninCurrin(negate=True)

    def run(x: torch.Tensor) -> Any:
        values = branin(x)
        return ackley(x), values, is_non_dominated(values)

    return run, lambda: (torch.rand(20, 2).double(),)


@FAMILY.training("pyro-ppl")
def variational_inference_of_a_regression() -> Any:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO

    pyro.clear_param_store()
    pyro.enable_validation(False)

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        weight = pyro.sample("weight", dist.Normal(torch.zeros(3), torch.ones(3)).to_event(1))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("y", dist.Normal(x @ weight, 0.5), obs=y)

    def guide(x: torch.Tensor, y: torch.Tensor) -> None:
        mean = pyro.param("mean", torch.zeros(3))
        scale = pyro.param("scale", torch.ones(3), constraint=dist.constraints.positive)
        pyro.sample("weight", dist.Normal(mean, scale).to_event(1))

    elbo = Trace_ELBO()
    return lambda x, y: elbo.differentiable_loss(model, guide, x, y), lambda: (
        torch.randn(16, 3),
        torch.randn(16),
    )


@FAMILY.inference("pyro-ppl")
def distributions_of_pyro() -> Any:
    import pyro.distributions as dist

    def run(logits: torch.Tensor, x: torch.Tensor) -> Any:
        zero = dist.ZeroInflatedPoisson(x.exp(), gate=torch.tensor(0.3))
        beta = dist.BetaBinomial(x.exp(), x.exp() + 1, total_count=10)
        return zero.log_prob(torch.ones_like(x)), beta.log_prob(torch.full_like(x, 3.0))

    return run, lambda: (torch.randn(8, 3), torch.randn(8))


@FAMILY.inference("pyro-ppl")
def trace_log_probability() -> Any:
    import pyro
    import pyro.distributions as dist
    import pyro.poutine as poutine

    def model(x: torch.Tensor) -> torch.Tensor:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", 8):
            return pyro.sample("y", dist.Normal(x, scale), obs=x * 2)

    def run(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        conditioned = poutine.condition(model, data={"scale": scale})
        return poutine.trace(conditioned).get_trace(x).log_prob_sum()

    return run, lambda: (torch.randn(8), torch.rand(()) + 0.5)


@FAMILY.training("zuko")
def neural_spline_flow() -> Any:
    import zuko

    flow = zuko.flows.NSF(features=3, context=2, transforms=2, hidden_features=(16, 16))
    return (
        lambda x, c: -flow(c).log_prob(x).mean(),
        lambda: (
            torch.randn(16, 3),
            torch.randn(16, 2),
        ),
        (flow,),
    )


@FAMILY.training("zuko")
def masked_autoregressive_flow() -> Any:
    import zuko

    flow = zuko.flows.MAF(features=3, transforms=2, hidden_features=(16,))
    return lambda x: -flow().log_prob(x).mean(), lambda: (torch.randn(16, 3),), (flow,)


@FAMILY.inference("zuko")
def samples_of_a_flow() -> Any:
    import zuko

    flow = zuko.flows.RealNVP(features=4, transforms=2, hidden_features=(16,))
    return lambda z: flow().transform.inv(z), lambda: (torch.randn(16, 4),)


@FAMILY.training("nflows")
def affine_couplings() -> Any:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms import (
        CompositeTransform,
        MaskedAffineAutoregressiveTransform,
        ReversePermutation,
    )

    layers = [
        layer
        for _ in range(2)
        for layer in (ReversePermutation(4), MaskedAffineAutoregressiveTransform(4, 16))
    ]
    flow = Flow(CompositeTransform(layers), StandardNormal([4]))
    return lambda x: -flow.log_prob(inputs=x).mean(), lambda: (torch.randn(16, 4),), (flow,)


@FAMILY.training("nflows")
def rational_quadratic_splines() -> Any:
    from nflows.transforms.splines import unconstrained_rational_quadratic_spline

    def run(x: torch.Tensor, parameters: torch.Tensor) -> Any:
        return unconstrained_rational_quadratic_spline(
            x, parameters[..., :8], parameters[..., 8:16], parameters[..., 16:], tail_bound=3.0,
            tails="linear",
        )  # fmt: skip

    return run, lambda: (torch.randn(16, 4), torch.randn(16, 4, 23).requires_grad_())


@FAMILY.training("normflows")
def real_nvp() -> Any:
    import normflows as nf

    flows = []
    for _ in range(2):
        net = nf.nets.MLP([1, 16, 2], init_zeros=False)
        flows += [nf.flows.AffineCouplingBlock(net), nf.flows.Permute(2, mode="swap")]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(2), flows)
    return lambda x: model.forward_kld(x), lambda: (torch.randn(32, 2),), (model,)


@FAMILY.inference("normflows")
def planar_and_radial_flows() -> Any:
    import normflows as nf

    model = nf.NormalizingFlow(
        nf.distributions.DiagGaussian(2, trainable=False),
        [nf.flows.Planar((2,)), nf.flows.Radial((2,)), nf.flows.Planar((2,))],
    )
    return lambda z: model.forward_and_log_det(z), lambda: (torch.randn(32, 2),)


@FAMILY.training("torchdiffeq")
def neural_equation_with_fixed_steps() -> Any:
    from torchdiffeq import odeint

    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    times = torch.linspace(0, 1, 6)
    return (
        lambda y: odeint(lambda t, y: net(y), y, times, method="rk4"),
        lambda: (torch.randn(8, 2),),
        (net,),
    )


@FAMILY.inference("torchdiffeq")
def adaptive_steps_of_a_van_der_pol_oscillator() -> Any:
    from torchdiffeq import odeint

    def oscillator(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, v = y
        return torch.stack([v, (1 - x * x) * v - x])

    times = torch.linspace(0, 2, 5)
    return lambda y: odeint(oscillator, y, times, method="dopri5"), lambda: (torch.randn(2),)


@FAMILY.training("torchdiffeq")
def adjoint_method() -> Any:
    from torchdiffeq import odeint_adjoint

    class Dynamics(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(),
                                           torch.nn.Linear(8, 2))  # fmt: skip

        def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.net(y)

    dynamics = Dynamics()
    times = torch.linspace(0, 1, 3)
    return (
        lambda y: odeint_adjoint(
            dynamics, y, times, method="midpoint", options={"step_size": 0.25}
        )[-1],
        lambda: (torch.randn(8, 2),),
        (dynamics,),
    )


@FAMILY.inference("torchsde")
def stochastic_equation_by_euler_steps() -> Any:
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift = torch.nn.Linear(3, 3)

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.drift(y)

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 0.1 * y.sigmoid()

    equation = Equation()
    times = torch.linspace(0, 1, 3)

    def solve(y: torch.Tensor) -> torch.Tensor:
        noise = torchsde.BrownianInterval(0.0, 1.0, size=(4, 3), entropy=1, dtype=torch.float32)
        return torchsde.sdeint(equation, y, times, bm=noise, dt=0.25, method="euler")

    return solve, lambda: (torch.randn(4, 3),)


@FAMILY.training("torchsde", rtol=1e-2)
def reversible_heun() -> Any:
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "stratonovich"

        def __init__(self) -> None:
            super().__init__()
            self.drift = torch.nn.Linear(3, 3)

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.drift(y).tanh()

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 0.1 * y.sigmoid()

    equation = Equation()
    times = torch.linspace(0, 1, 3)

    def solve(y: torch.Tensor) -> torch.Tensor:
        noise = torchsde.BrownianInterval(0.0, 1.0, size=(4, 3), entropy=2, dtype=torch.float32)
        return torchsde.sdeint(equation, y, times, bm=noise, dt=0.25, method="heun")

    return solve, lambda: (torch.randn(4, 3),), (equation,)


@FAMILY.training("torchcde")
def controlled_equation_over_a_path() -> Any:
    import torchcde

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4 * 3)

        def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.linear(z).tanh().view(*z.shape, 3)

    field = Field()

    def run(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        path = torchcde.CubicSpline(
            torchcde.hermite_cubic_coefficients_with_backward_differences(x)
        )
        return torchcde.cdeint(
            path, field, z, path.interval, adjoint=False, method="rk4", options={"step_size": 1.0}
        )[:, -1]

    return run, lambda: (torch.randn(3, 6, 3), torch.randn(3, 4)), (field,)


@FAMILY.inference("torchcde")
def log_signature_free_interpolation() -> Any:
    import torchcde

    def interpolate(x: torch.Tensor) -> Any:
        path = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(x))
        point = torch.tensor(2.5)
        return path.evaluate(point), path.derivative(point)

    return interpolate, lambda: (torch.randn(3, 6, 2),)


@FAMILY.inference("torchode")
def batched_solver_with_a_step_size_each() -> Any:
    import torchode as to

    def decay(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -0.5 * y

    term = to.ODETerm(decay)
    method = to.Dopri5(term=term)
    solver = to.AutoDiffAdjoint(method, to.IntegralController(atol=1e-5, rtol=1e-3, term=term))

    def solve(y: torch.Tensor) -> torch.Tensor:
        times = torch.linspace(0, 1, 4).repeat(y.shape[0], 1)
        return solver.solve(to.InitialValueProblem(y0=y, t_eval=times)).ys

    return solve, lambda: (torch.randn(3, 2),)


@FAMILY.training("neuraloperator")
def fourier_neural_operator() -> Any:
    from neuralop.models import FNO

    net = FNO(n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2)
    return net.train(), lambda: (torch.randn(2, 1, 16, 16),)


@FAMILY.training("neuraloperator")
def tensorised_operator_and_sobolev_loss() -> Any:
    from neuralop.losses import H1Loss
    from neuralop.models import TFNO

    net = TFNO(n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=1,
               factorization="tucker", rank=0.5)  # fmt: skip
    loss = H1Loss(d=2)
    return (
        lambda x, y: loss(net(x), y),
        lambda: (
            torch.randn(2, 1, 16, 16),
            torch.randn(2, 1, 16, 16),
        ),
        (net,),
    )


@FAMILY.inference("torch-harmonics")
def spherical_harmonic_transform() -> Any:
    import torch_harmonics as th

    forward = th.RealSHT(16, 32, grid="equiangular")
    inverse = th.InverseRealSHT(16, 32, grid="equiangular")
    return lambda x: inverse(forward(x) * 0.5), lambda: (torch.randn(2, 3, 16, 32),)


@FAMILY.training("e3nn")
def tensor_product_of_irreducible_representations() -> Any:
    from e3nn import o3

    product = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o")
    return product, lambda: (torch.randn(8, 10), torch.randn(8, 4))


@FAMILY.inference("e3nn")
def spherical_harmonics_and_radial_basis() -> Any:
    from e3nn import o3
    from e3nn.math import soft_one_hot_linspace

    def embed(vectors: torch.Tensor) -> Any:
        angular = o3.spherical_harmonics([0, 1, 2], vectors, normalize=True, normalization="norm")
        radial = soft_one_hot_linspace(
            vectors.norm(dim=-1), 0.0, 3.0, 6, basis="smooth_finite", cutoff=True
        )
        return angular, radial

    return embed, lambda: (torch.randn(20, 3),)


@FAMILY.training("e3nn")
def equivariant_message_passing() -> Any:
    from e3nn import nn, o3

    sh = o3.Irreps.spherical_harmonics(1)
    product = o3.FullyConnectedTensorProduct("3x0e", sh, "2x0e + 1x1o", shared_weights=False)
    weights = nn.FullyConnectedNet([4, 8, product.weight_numel], torch.relu)
    module = torch.nn.ModuleList([product, weights])

    def layer(x: Any, position: Any, edges: Any) -> torch.Tensor:
        source, target = edges
        vectors = position[source] - position[target]
        harmonics = o3.spherical_harmonics(sh, vectors, normalize=True)
        messages = product(x[source], harmonics, weights(vectors.norm(dim=1, keepdim=True)
                                                         .expand(-1, 4)))  # fmt: skip
        return messages.new_zeros(x.shape[0], messages.shape[1]).index_add(0, target, messages)

    def inputs() -> Any:
        source = torch.arange(10).repeat(3)
        target = (source + torch.randint(1, 10, (30,))) % 10
        return torch.randn(10, 3), torch.randn(10, 3), torch.stack([source, target])

    return layer, inputs, (module,)


def _graph() -> Any:
    return torch.randn(30, 8), torch.randint(0, 30, (2, 90))


@FAMILY.training("torch-geometric")
def graph_convolution_network() -> Any:
    from torch_geometric.nn import GCN

    net = GCN(in_channels=8, hidden_channels=16, num_layers=2, out_channels=4, dropout=0.1)
    return net.train(), _graph


@FAMILY.training("torch-geometric")
def graph_attention_network() -> Any:
    from torch_geometric.nn import GATv2Conv

    net = GATv2Conv(8, 4, heads=2)
    return net.train(), _graph


@FAMILY.inference("torch-geometric")
def pooling_of_a_batch_of_graphs() -> Any:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GINConv, global_mean_pool

    net = GINConv(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())).eval()
    edges = [torch.randint(0, 10, (2, 25)) for _ in range(3)]

    def run(x: torch.Tensor) -> torch.Tensor:
        batch = Batch.from_data_list([Data(x=x[i], edge_index=edges[i]) for i in range(3)])
        return global_mean_pool(net(batch.x, batch.edge_index), batch.batch)

    return run, lambda: (torch.randn(3, 10, 8),)


@FAMILY.inference("torch-geometric")
def loops_laplacian_and_softmax_of_edges() -> Any:
    from torch_geometric.utils import add_self_loops, degree, get_laplacian, softmax

    def run(x: torch.Tensor, edges: torch.Tensor) -> Any:
        edges, _ = add_self_loops(edges, num_nodes=30)
        weights = softmax(x[edges[0], 0], edges[1], num_nodes=30)
        laplacian = get_laplacian(edges, normalization="sym", num_nodes=30)
        return degree(edges[1], 30), weights, laplacian[0].shape, laplacian[1]

    return run, _graph


@FAMILY.training("torch-geometric")
def own_message_passing_layer() -> Any:
    from torch_geometric.nn import MessagePassing

    class Layer(MessagePassing):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(aggr="max")
            self.mlp = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.propagate(edge_index, x=x)

        def message(self, x_i: torch.Tensor, x_j: torch.Tensor) -> torch.Tensor:
            return self.mlp(torch.cat([x_i, x_j - x_i], dim=-1))

    return Layer().train(), _graph


@FAMILY.training("torch.distributions")
def evidence_lower_bound() -> Any:
    from torch.distributions import Bernoulli, Independent, Normal, kl_divergence

    encoder, decoder = torch.nn.Linear(12, 8), torch.nn.Linear(4, 12)
    net = torch.nn.ModuleList([encoder, decoder])

    def bound(x: torch.Tensor) -> torch.Tensor:
        mean, log_scale = encoder(x).chunk(2, dim=-1)
        posterior = Independent(Normal(mean, log_scale.exp()), 1)
        prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
        likelihood = Independent(Bernoulli(logits=decoder(posterior.rsample())), 1)
        return (kl_divergence(posterior, prior) - likelihood.log_prob(x)).mean()

    return bound, lambda: (torch.rand(16, 12).round(),), (net,)


@FAMILY.inference("torch.distributions")
def mixtures_and_transforms() -> Any:
    from torch.distributions import (
        AffineTransform,
        Categorical,
        MixtureSameFamily,
        Normal,
        SigmoidTransform,
        TransformedDistribution,
    )

    def run(logits: torch.Tensor, x: torch.Tensor) -> Any:
        mixture = MixtureSameFamily(Categorical(logits=logits), Normal(logits, 1.0))
        squashed = TransformedDistribution(
            Normal(0.0, 1.0), [AffineTransform(0.5, 2.0), SigmoidTransform()]
        )
        return mixture.log_prob(x), mixture.mean, squashed.log_prob(x.sigmoid())

    return run, lambda: (torch.randn(8, 3), torch.randn(8))


@FAMILY.inference("torch.distributions")
def multivariate_normals() -> Any:
    from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, kl_divergence

    def run(mean: torch.Tensor, root: torch.Tensor, x: torch.Tensor) -> Any:
        full = MultivariateNormal(mean, scale_tril=root.tril(-1) + torch.eye(4))
        low = LowRankMultivariateNormal(mean, root[:, :2], torch.ones(4))
        return full.log_prob(x), low.log_prob(x), full.entropy(), kl_divergence(full, full)

    return run, lambda: (torch.randn(4), torch.randn(4, 4), torch.randn(8, 4))


@FAMILY.inference("torch.distributions")
def samples_and_discrete_scores() -> Any:
    from torch.distributions import Beta, Categorical, Dirichlet, Gamma, Geometric, Poisson

    def run(logits: torch.Tensor) -> Any:
        rates = logits.exp()
        chosen = Categorical(logits=logits).sample()
        return (
            chosen,
            Gamma(rates, 1.0).rsample(),
            Beta(rates, rates + 1).mean,
            Dirichlet(rates).log_prob(logits.softmax(-1)),
            Poisson(rates).log_prob(torch.ones_like(rates)),
            Geometric(logits=logits).entropy(),
        )

    return run, lambda: (torch.randn(8, 4),)


@FAMILY.training("torchquad")
def integral_of_a_network() -> Any:
    from torchquad import Simpson

    net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    rule = Simpson()
    domain = torch.tensor([[0.0, 1.0]])

    def integrate(scale: torch.Tensor) -> Any:
        return rule.integrate(
            lambda x: net(x * scale).squeeze(-1), dim=1, N=31, integration_domain=domain,
            backend="torch",
        )  # fmt: skip

    return integrate, lambda: (torch.rand(()),), (net,)


@FAMILY.inference("tensorly")
def tucker_reconstruction() -> Any:
    import tensorly as tl
    from tensorly.tucker_tensor import tucker_to_tensor

    tl.set_backend("pytorch")

    def run(core: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
        return tucker_to_tensor((core, list(factors)))

    return run, lambda: (torch.randn(2, 3, 4), torch.randn(5, 2), torch.randn(6, 3),
                         torch.randn(7, 4))  # fmt: skip


@FAMILY.training("tensorly-torch")
def factorised_linear_layer() -> Any:
    import tltorch

    layer = tltorch.FactorizedLinear((4, 4), (4, 4), factorization="blocktt", rank=4)
    return layer, lambda: (torch.randn(8, 16),)


@FAMILY.inference("linear_operator")
def structured_matrices() -> Any:
    from linear_operator.operators import (
        DiagLinearOperator,
        KroneckerProductLinearOperator,
        ToeplitzLinearOperator,
    )

    def run(column: torch.Tensor, a: torch.Tensor, diagonal: torch.Tensor) -> Any:
        toeplitz = ToeplitzLinearOperator(column) + DiagLinearOperator(diagonal.exp())
        product = KroneckerProductLinearOperator(a, a)
        return toeplitz @ diagonal, product.to_dense(), product @ torch.ones(9)

    return run, lambda: (torch.randn(6), torch.randn(3, 3), torch.randn(6))
