from tests.simulation.command import main

main()
